/* Calls by which a program waits for the device: some of what was freed is given back then, and work has ended. */
#include "charge/charge.h"
#include "gate.h"

#define WAIT(name, parameters, arguments)                                                                   \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        CUresult result = REAL(name) arguments;                                                             \
        gate_look();                                                                                        \
        reclaim_after_wait();                                                                               \
        return result;                                                                                      \
    }

WAIT(cuCtxSynchronize, (void), ())
WAIT(cuCtxSynchronize_v2, (CUcontext context), (context))
WAIT(cuStreamSynchronize, (CUstream stream), (stream))
WAIT(cuStreamSynchronize_ptsz, (CUstream stream), (stream))
WAIT(cuEventSynchronize, (CUevent event), (event))
