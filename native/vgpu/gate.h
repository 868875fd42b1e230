/* Where launches wait for their share of the device's time. */
#ifndef NVC_VGPU_GATE_H
#define NVC_VGPU_GATE_H

#include "meter.h"
#include "window.h"

/* A launch is about to be made in a stream: returns when it may. It ends with gate_leave(). */
void gate_enter(struct passage *passage, CUstream stream, bool per_thread, uint64_t key);
void gate_leave(struct passage *passage, CUresult result);

#endif
