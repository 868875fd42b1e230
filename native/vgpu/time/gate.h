/* Where launches wait, while nobody keeps time from outside. */
#ifndef NVC_VGPU_GATE_H
#define NVC_VGPU_GATE_H

#include "pacer.h"
#include "window.h"

/* A launch is about to be made in a stream: returns when it may, CUDA_SUCCESS, or that it may not, for want of a quota that
 * can be read. In the first case it ends with gate_leave(). */
CUresult gate_enter(struct launch *launch, CUstream stream, bool per_thread);
void gate_leave(struct launch *launch, CUresult result);

/* The program has waited for the device: charges for what has ended. */
void gate_look(void);

#endif
