#ifndef NVC_VGPU_CAPTURE_H
#define NVC_VGPU_CAPTURE_H

#include "process.h"
#include "real.h"

/* Streams capture, for all that is known; and whether this one does, or cannot tell. */
bool capture_is_any(void);
bool capture_has(CUstream stream);

/* Around what depends on whether a stream captures: the second is true if no capture began, ended or came to another stream
 * since the first, which returned `begins`. */
uint64_t capture_begins(void);
bool capture_is_same(uint64_t begins);

/* Before, and after, a call by which one may. */
void capture_change(bool begins);

#endif
