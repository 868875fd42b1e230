/* Launches of kernels: their local memory is accounted, and they wait at the gate. */
#include "time/gate.h"
#include "code/local.h"

#include <string.h>

static CUstream stream_of(const CUlaunchConfig *config)
{
    return config ? config->hStream : NULL; /* which the driver refuses */
}

#define LAUNCH(f, stream, per_thread, call)                                                                 \
    (local_allows(f, stream) ? PACED(stream, per_thread, call) : CUDA_ERROR_OUT_OF_MEMORY)
#define LAUNCH_IN(name, stream, arguments) LAUNCH(f, stream, per_thread, REAL_IN(per_thread, name) arguments)

#define SHAPE                                                                                               \
    unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz,   \
        unsigned int shared, CUstream stream

TWINS(cuLaunchKernel, (CUfunction f, SHAPE, void **values, void **extra),
      LAUNCH_IN(cuLaunchKernel, stream, (f, gx, gy, gz, bx, by, bz, shared, stream, values, extra)))
TWINS(cuLaunchKernelEx, (const void *config, CUfunction f, void **values, void **extra),
      LAUNCH_IN(cuLaunchKernelEx, stream_of(config), (config, f, values, extra)))
TWINS(cuLaunchCooperativeKernel, (CUfunction f, SHAPE, void **values),
      LAUNCH_IN(cuLaunchCooperativeKernel, stream, (f, gx, gy, gz, bx, by, bz, shared, stream, values)))
WRAP(cuLaunch, (CUfunction f), LAUNCH(f, NULL, per_thread, REAL(cuLaunch)(f)))
WRAP(cuLaunchGrid, (CUfunction f, int width, int height),
     LAUNCH(f, NULL, per_thread, REAL(cuLaunchGrid)(f, width, height)))
WRAP(cuLaunchGridAsync, (CUfunction f, int width, int height, CUstream stream),
     LAUNCH(f, stream, per_thread, REAL(cuLaunchGridAsync)(f, width, height, stream)))

/* At one gate after the other. Each launch is on a device of its own. With a copy of the list, which another thread may change. */
CU_API CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count,
                                                     unsigned int flags)
{
    CUDA_LAUNCH_PARAMS own[VGPU_DEVICES];
    struct launch launches[VGPU_DEVICES];
    CUresult result = CUDA_SUCCESS;
    unsigned int entered = 0;
    if (list && count > VGPU_DEVICES)
        return CUDA_ERROR_INVALID_VALUE;
    if (list)
        list = memcpy(own, list, count * sizeof(*own));
    for (unsigned int i = 0; list && i < count; i++)
        if (!local_allows(list[i].function, list[i].hStream))
            return CUDA_ERROR_OUT_OF_MEMORY;
    if (!list || window_is_open())
        return HELD(REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags));
    while (entered < count && result == CUDA_SUCCESS) {
        result = gate_enter(&launches[entered], list[entered].hStream, false);
        entered += result == CUDA_SUCCESS;
    }
    if (result == CUDA_SUCCESS)
        result = HELD(REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags));
    while (entered > 0)
        gate_leave(&launches[--entered], result);
    return result;
}
