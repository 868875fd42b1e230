/* What the shim asks the driver on its own account is no part of a capture, and ends none of another thread. */
#pragma once

#include "real.h"

/* The stream captures, or the driver cannot tell. */
static inline bool capture_has(CUstream stream)
{
    int capturing = 0;
    return REAL(cuStreamIsCapturing)(stream, &capturing) != CUDA_SUCCESS || capturing;
}

/* Around such calls: the first returns the thread's mode for the second. */
static inline int capture_leave(void)
{
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    return REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS ? mode : -1;
}

static inline void capture_return(int mode)
{
    if (mode >= 0)
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}
