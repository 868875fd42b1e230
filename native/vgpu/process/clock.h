/* CLOCK_MONOTONIC as every process of a container has it: one that is in a time namespace of its own sees another. */
#ifndef NVC_VGPU_CLOCK_H
#define NVC_VGPU_CLOCK_H

#include "process.h"

/* The host's time at a moment of this process's CLOCK_MONOTONIC; nanoseconds. */
uint64_t clock_of_host(uint64_t at);

/* Whether that can be told: /proc says it, or has said it before. If not, this process's clock passes for the host's. */
bool clock_is_known(void);

#endif
