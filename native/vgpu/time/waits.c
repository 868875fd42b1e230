/* Calls by which a program waits for the device, or asks how far it is. After a wait some of what was freed is given back,
 * and work has ended. */
#include "charge/charge.h"
#include "charge/resident.h"
#include "gate.h"

static CUresult waited(CUresult result)
{
    gate_look();
    reclaim_after_wait();
    return result;
}

WRAP(cuCtxSynchronize, (void), waited(RESIDENT(cuCtxSynchronize)()))
WRAP(cuCtxSynchronize_v2, (CUcontext context), waited(RESIDENT(cuCtxSynchronize_v2)(context)))
TWINS(cuStreamSynchronize, (CUstream stream), waited(RESIDENT_IN(per_thread, cuStreamSynchronize)(stream)))
WRAP(cuEventSynchronize, (CUevent event), waited(RESIDENT(cuEventSynchronize)(event)))

WRAP(cuEventQuery, (CUevent event), RESIDENT(cuEventQuery)(event))
WRAP(cuEventElapsedTime, (float *out, CUevent from, CUevent to), RESIDENT(cuEventElapsedTime)(out, from, to))
WRAP(cuEventElapsedTime_v2, (float *out, CUevent from, CUevent to),
     RESIDENT(cuEventElapsedTime_v2)(out, from, to))
TWINS(cuStreamQuery, (CUstream stream), RESIDENT_IN(per_thread, cuStreamQuery)(stream))
