/* Launches of kernels: their local memory is accounted, and they wait at the gate. */
#include "time/gate.h"
#include "code/local.h"

#include <string.h>

#define LAUNCH(name, parameters, arguments, stream, per_thread)                                             \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        if (!local_allows(f, stream))                                                                       \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                \
        if (__builtin_expect(window_is_open(), 1))                                                          \
            return REAL(name) arguments;                                                                    \
        struct launch launch;                                                                               \
        CUresult result = gate_enter(&launch, stream, per_thread);                                          \
        if (result != CUDA_SUCCESS)                                                                         \
            return result;                                                                                  \
        result = REAL(name) arguments;                                                                      \
        gate_leave(&launch, result);                                                                        \
        return result;                                                                                      \
    }

#define SHAPE                                                                                               \
    unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz,   \
        unsigned int shared, CUstream stream

static CUstream stream_of(const CUlaunchConfig *config)
{
    return config ? config->hStream : NULL; /* which the driver refuses */
}

LAUNCH(cuLaunchKernel, (CUfunction f, SHAPE, void **values, void **extra),
       (f, gx, gy, gz, bx, by, bz, shared, stream, values, extra), stream, false)
LAUNCH(cuLaunchKernel_ptsz, (CUfunction f, SHAPE, void **values, void **extra),
       (f, gx, gy, gz, bx, by, bz, shared, stream, values, extra), stream, true)
LAUNCH(cuLaunchKernelEx, (const void *config, CUfunction f, void **values, void **extra),
       (config, f, values, extra), stream_of(config), false)
LAUNCH(cuLaunchKernelEx_ptsz, (const void *config, CUfunction f, void **values, void **extra),
       (config, f, values, extra), stream_of(config), true)
LAUNCH(cuLaunchCooperativeKernel, (CUfunction f, SHAPE, void **values),
       (f, gx, gy, gz, bx, by, bz, shared, stream, values), stream, false)
LAUNCH(cuLaunchCooperativeKernel_ptsz, (CUfunction f, SHAPE, void **values),
       (f, gx, gy, gz, bx, by, bz, shared, stream, values), stream, true)
LAUNCH(cuLaunch, (CUfunction f), (f), NULL, false)
LAUNCH(cuLaunchGrid, (CUfunction f, int width, int height), (f, width, height), NULL, false)
LAUNCH(cuLaunchGridAsync, (CUfunction f, int width, int height, CUstream stream), (f, width, height, stream),
       stream, false)

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
    if (list && !local_allows_list(list, count))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!list || window_is_open())
        return REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
    while (entered < count && result == CUDA_SUCCESS) {
        result = gate_enter(&launches[entered], list[entered].hStream, false);
        entered += result == CUDA_SUCCESS;
    }
    if (result == CUDA_SUCCESS)
        result = REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
    while (entered > 0)
        gate_leave(&launches[--entered], result);
    return result;
}
