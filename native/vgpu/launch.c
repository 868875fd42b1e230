/* Launches of kernels: their local memory is accounted, and they wait at the gate. */
#include "gate.h"
#include "local.h"

#define LAUNCH(name, parameters, arguments, stream, per_thread, ...)                                        \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        if (!local_allows(f))                                                                               \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                \
        if (__builtin_expect(window_is_open(), 1))                                                          \
            return REAL(name) arguments;                                                                    \
        struct passage passage;                                                                             \
        gate_enter(&passage, stream, per_thread, estimate_key(f, __VA_ARGS__));                             \
        CUresult result = REAL(name) arguments;                                                             \
        gate_leave(&passage, result);                                                                       \
        return result;                                                                                      \
    }

#define SHAPE                                                                                               \
    unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz,   \
        unsigned int shared, CUstream stream

#define OF_SHAPE ((const unsigned int[6]){gx, gy, gz, bx, by, bz})

/* The driver refuses a launch without a configuration. */
static const CUlaunchConfig nothing;

#define OF_CONFIG ((const CUlaunchConfig *)(config ? config : &nothing))

LAUNCH(cuLaunchKernel, (CUfunction f, SHAPE, void **values, void **extra),
       (f, gx, gy, gz, bx, by, bz, shared, stream, values, extra), stream, false, OF_SHAPE)
LAUNCH(cuLaunchKernel_ptsz, (CUfunction f, SHAPE, void **values, void **extra),
       (f, gx, gy, gz, bx, by, bz, shared, stream, values, extra), stream, true, OF_SHAPE)
LAUNCH(cuLaunchKernelEx, (const void *config, CUfunction f, void **values, void **extra),
       (config, f, values, extra), OF_CONFIG->hStream, false, OF_CONFIG->shape)
LAUNCH(cuLaunchKernelEx_ptsz, (const void *config, CUfunction f, void **values, void **extra),
       (config, f, values, extra), OF_CONFIG->hStream, true, OF_CONFIG->shape)
LAUNCH(cuLaunchCooperativeKernel, (CUfunction f, SHAPE, void **values),
       (f, gx, gy, gz, bx, by, bz, shared, stream, values), stream, false, OF_SHAPE)
LAUNCH(cuLaunchCooperativeKernel_ptsz, (CUfunction f, SHAPE, void **values),
       (f, gx, gy, gz, bx, by, bz, shared, stream, values), stream, true, OF_SHAPE)
LAUNCH(cuLaunch, (CUfunction f), (f), NULL, false, ((const unsigned int[6]){1, 1, 1}))
LAUNCH(cuLaunchGrid, (CUfunction f, int width, int height), (f, width, height), NULL, false,
       ((const unsigned int[6]){(unsigned int)width, (unsigned int)height, 1}))
LAUNCH(cuLaunchGridAsync, (CUfunction f, int width, int height, CUstream stream), (f, width, height, stream),
       stream, false, ((const unsigned int[6]){(unsigned int)width, (unsigned int)height, 1}))

/* At one gate after the other, in the list's order, which opens by itself: so none waits for another. */
CU_API CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count,
                                                     unsigned int flags)
{
    struct passage passages[VGPU_DEVICES];
    if (!local_allows_list(list, count))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (window_is_open() || !list || count > VGPU_DEVICES)
        return REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
    for (unsigned int i = 0; i < count; i++)
        gate_enter(&passages[i], list[i].hStream, false, estimate_key(list[i].function, list[i].shape));
    CUresult result = REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
    for (unsigned int i = 0; i < count; i++)
        gate_leave(&passages[i], result);
    return result;
}
