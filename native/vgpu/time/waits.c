/* Calls by which a program waits for the device, or asks how far it is. After a wait some of what was freed is given back,
 * and work has ended. */
#include "charge/charge.h"
#include "charge/resident.h"
#include "gate.h"

#define WAIT(name, parameters, arguments)                                                                   \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        CUresult result = RESIDENT(name) arguments;                                                         \
        gate_look();                                                                                        \
        reclaim_after_wait();                                                                               \
        return result;                                                                                      \
    }

WAIT(cuCtxSynchronize, (void), ())
WAIT(cuCtxSynchronize_v2, (CUcontext context), (context))
WAIT(cuStreamSynchronize, (CUstream stream), (stream))
WAIT(cuStreamSynchronize_ptsz, (CUstream stream), (stream))
WAIT(cuEventSynchronize, (CUevent event), (event))

#define QUESTION(name, parameters, arguments)                                                               \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        return RESIDENT(name) arguments;                                                                    \
    }

QUESTION(cuEventQuery, (CUevent event), (event))
QUESTION(cuEventElapsedTime, (float *out, CUevent from, CUevent to), (out, from, to))
QUESTION(cuEventElapsedTime_v2, (float *out, CUevent from, CUevent to), (out, from, to))
QUESTION(cuStreamQuery, (CUstream stream), (stream))
QUESTION(cuStreamQuery_ptsz, (CUstream stream), (stream))
