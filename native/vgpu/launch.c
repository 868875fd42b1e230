/* Launches of kernels: their local memory is accounted, and they wait at the gate. Ends of the streams they are in. */
#include "gate.h"
#include "local.h"

#include <string.h>

#define LAUNCH_OF(name, parameters, copy, arguments, stream, per_thread)                                    \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        copy;                                                                                               \
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

#define LAUNCH(name, parameters, arguments, stream, per_thread)                                             \
    LAUNCH_OF(name, parameters, (void)0, arguments, stream, per_thread)

/* Another thread may change what the program has: the driver is given what the gate has seen. It refuses a launch without a
 * configuration. */
static __attribute__((noinline)) const void *copy_of(const CUlaunchConfig *config, CUlaunchConfig *own)
{
    *own = config ? *config : (CUlaunchConfig){0};
    return config ? own : NULL;
}

#define COPY_CONFIG                                                                                         \
    CUlaunchConfig own;                                                                                     \
    config = copy_of(config, &own)

LAUNCH(cuLaunchKernel, (CUfunction f, SHAPE, void **values, void **extra),
       (f, gx, gy, gz, bx, by, bz, shared, stream, values, extra), stream, false)
LAUNCH(cuLaunchKernel_ptsz, (CUfunction f, SHAPE, void **values, void **extra),
       (f, gx, gy, gz, bx, by, bz, shared, stream, values, extra), stream, true)
LAUNCH_OF(cuLaunchKernelEx, (const void *config, CUfunction f, void **values, void **extra), COPY_CONFIG,
          (config, f, values, extra), own.hStream, false)
LAUNCH_OF(cuLaunchKernelEx_ptsz, (const void *config, CUfunction f, void **values, void **extra),
          COPY_CONFIG, (config, f, values, extra), own.hStream, true)
LAUNCH(cuLaunchCooperativeKernel, (CUfunction f, SHAPE, void **values),
       (f, gx, gy, gz, bx, by, bz, shared, stream, values), stream, false)
LAUNCH(cuLaunchCooperativeKernel_ptsz, (CUfunction f, SHAPE, void **values),
       (f, gx, gy, gz, bx, by, bz, shared, stream, values), stream, true)
LAUNCH(cuLaunch, (CUfunction f), (f), NULL, false)
LAUNCH(cuLaunchGrid, (CUfunction f, int width, int height), (f, width, height), NULL, false)
LAUNCH(cuLaunchGridAsync, (CUfunction f, int width, int height, CUstream stream), (f, width, height, stream),
       stream, false)

/* At one gate after the other, in the list's order, which opens by itself: so none waits for another. Each launch is on
 * a device of its own, and the driver is given a copy of the list, which another thread may change. */
CU_API CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count,
                                                     unsigned int flags)
{
    CUDA_LAUNCH_PARAMS own[VGPU_DEVICES];
    struct launch launches[VGPU_DEVICES];
    CUresult result = CUDA_SUCCESS;
    unsigned int entered = 0;
    if (!list)
        return REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
    if (count > VGPU_DEVICES)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(own, list, count * sizeof(*own));
    if (!local_allows_list(own, count))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (window_is_open())
        return REAL(cuLaunchCooperativeKernelMultiDevice)(own, count, flags);
    while (entered < count && result == CUDA_SUCCESS) {
        result = gate_enter(&launches[entered], own[entered].hStream, false);
        entered += result == CUDA_SUCCESS;
    }
    if (result == CUDA_SUCCESS)
        result = REAL(cuLaunchCooperativeKernelMultiDevice)(own, count, flags);
    while (entered > 0)
        gate_leave(&launches[--entered], result);
    return result;
}

CU_API CUresult cuStreamDestroy(CUstream stream)
{
    if ((uintptr_t)stream > 2)
        meter_close_stream(stream);
    return REAL(cuStreamDestroy)(stream);
}

CU_API CUresult cuStreamDestroy_v2(CUstream stream)
{
    if ((uintptr_t)stream > 2)
        meter_close_stream(stream);
    return REAL(cuStreamDestroy_v2)(stream);
}
