/* Where launches wait for their share of the device's time. */
#ifndef NVC_VGPU_GATE_H
#define NVC_VGPU_GATE_H

#include "meter.h"
#include "window.h"

/* A launch is about to be made in a stream: returns when it may, CUDA_SUCCESS, or that it may not, for want of memory or
 * of a quota that can be read. It ends with gate_leave(), in the first case. */
CUresult gate_enter(struct launch *launch, CUstream stream,
                    bool per_thread); /* what begins at the end of the call */
CUresult gate_enter_work(struct launch *launch, CUstream stream, bool per_thread); /* what may begin in it */
void gate_leave(struct launch *launch, CUresult result);

/* Likewise for one that works on another device as well, and ends when what is in the stream has. */
CUresult gate_enter_for(struct launch *launch, CUstream stream, bool per_thread, int position);

/* The stream is to wait for something before what is launched in it next: see stalls.c. */
void gate_expect_stall(CUstream stream, bool per_thread);

/* copies.c: cuMemcpy, which waits at the gate where both ends are on a device. */
CUresult copy_anywhere(CUdeviceptr to, CUdeviceptr from, size_t size, bool per_thread);

#endif
