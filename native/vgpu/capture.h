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

/* What the shim asks the driver on its own account is no part of a capture, and ends none of another thread: between these
 * two, of which the first returns the thread's mode. */
int capture_leave(void);
void capture_return(int mode);

#endif
