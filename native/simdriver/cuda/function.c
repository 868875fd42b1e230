/* Attributes of functions, and how many blocks fit. */
#include "module.h"

#include <limits.h>

static CUresult get_attribute(int *out, int attribute, CUfunction handle)
{
    const struct function *function = function_of(handle);
    CU_ARGUMENT(out && attribute >= 0 && attribute < CU_FUNC_ATTRIBUTE_COUNT);
    CU_REQUIRE(function, CUDA_ERROR_INVALID_HANDLE);
    *out = function->attributes[attribute];
    return CUDA_SUCCESS;
}

CU_EXPORT(cuFuncGetAttribute, (int *out, int attribute, CUfunction function),
          get_attribute(out, attribute, function))
CU_EXPORT(cuKernelGetAttribute, (int *out, int attribute, CUkernel kernel, CUdevice device),
          ((void)device, get_attribute(out, attribute, kernel)))

/* Only what a program may choose can be set. */
static CUresult set_attribute(CUfunction handle, int attribute, int value)
{
    struct function *function = function_of(handle);
    CU_REQUIRE(function, CUDA_ERROR_INVALID_HANDLE);
    CU_ARGUMENT(attribute >= CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES &&
                attribute < CU_FUNC_ATTRIBUTE_COUNT);
    CU_ARGUMENT(value >= -1 && (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ||
                                value <= (int)driver()->devices[0].gpu->shared_memory - 1024));
    function->attributes[attribute] = value;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuFuncSetAttribute, (CUfunction function, int attribute, int value),
          set_attribute(function, attribute, value))
CU_EXPORT(cuKernelSetAttribute, (int attribute, int value, CUkernel kernel, CUdevice device),
          ((void)device, set_attribute(kernel, attribute, value)))

/* Preferences about caches: accepted, and without effect. */
static CUresult prefer(CUfunction function, int value)
{
    CU_REQUIRE(function_of(function), CUDA_ERROR_INVALID_HANDLE);
    CU_ARGUMENT(value >= 0 && value <= 3);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuFuncSetCacheConfig, (CUfunction function, int value), prefer(function, value))
CU_EXPORT(cuFuncSetSharedMemConfig, (CUfunction function, int value), prefer(function, value))
CU_EXPORT(cuKernelSetCacheConfig, (CUkernel kernel, int value, CUdevice device),
          ((void)device, prefer(kernel, value)))

#define TELL(name, type, member)                                                                            \
    static CUresult name(type *out, CUfunction handle)                                                      \
    {                                                                                                       \
        const struct function *function = function_of(handle);                                              \
        CU_ARGUMENT(out);                                                                                   \
        CU_REQUIRE(function, CUDA_ERROR_INVALID_HANDLE);                                                    \
        *out = function->member;                                                                            \
        return CUDA_SUCCESS;                                                                                \
    }

TELL(get_name, const char *, name)
TELL(get_module, CUmodule, module)
TELL(is_loaded, int, loaded)

CU_EXPORT(cuFuncGetName, (const char **out, CUfunction function), get_name(out, function))
CU_EXPORT(cuKernelGetName, (const char **out, CUkernel kernel), get_name(out, kernel))

static CUresult get_parameter(CUfunction handle, size_t index, size_t *offset, size_t *size)
{
    const struct function *function = function_of(handle);
    CU_REQUIRE(function, CUDA_ERROR_INVALID_HANDLE);
    CU_ARGUMENT(offset && index < function->parameter_count);
    *offset = function->parameters[index].offset;
    if (size)
        *size = function->parameters[index].size;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuFuncGetParamInfo, (CUfunction function, size_t index, size_t *offset, size_t *size),
          get_parameter(function, index, offset, size))
CU_EXPORT(cuKernelGetParamInfo, (CUkernel kernel, size_t index, size_t *offset, size_t *size),
          get_parameter(kernel, index, offset, size))

CU_EXPORT(cuFuncGetModule, (CUmodule * out, CUfunction function), get_module(out, function))

CU_EXPORT(cuFuncIsLoaded, (int *out, CUfunction function), is_loaded(out, function))

static CUresult load(CUfunction handle)
{
    struct function *function = function_of(handle);
    CU_REQUIRE(function, CUDA_ERROR_INVALID_HANDLE);
    function->loaded = true;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuFuncLoad, (CUfunction function), load(function))

/* Limited by threads and shared memory alone. */
static CUresult max_blocks(int *out, CUfunction function, int block, size_t shared)
{
    CU_CONTEXT(context);
    const struct sim_gpu *gpu = context->device->gpu;
    CU_ARGUMENT(out && block > 0 && shared <= INT_MAX);
    CU_REQUIRE(function_of(function), CUDA_ERROR_INVALID_HANDLE);
    uint32_t by_threads = block > 1024 ? 0 : gpu->threads / (((uint32_t)block + 31) / 32 * 32);
    uint32_t by_shared = gpu->shared_memory / ((uint32_t)shared + 1024);
    uint32_t blocks = by_threads < by_shared ? by_threads : by_shared;
    *out = (int)(blocks < 32 ? blocks : 32);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuOccupancyMaxActiveBlocksPerMultiprocessor,
          (int *out, CUfunction function, int block, size_t shared),
          max_blocks(out, function, block, shared))

CU_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *out, CUfunction function,
                                                                     int block, size_t shared,
                                                                     unsigned int flags)
{
    CU_ARGUMENT(flags <= 1);
    CU_CALL(max_blocks(out, function, block, shared));
}

typedef size_t (*shared_of)(int block);

static CUresult best_block(int *grid, int *block, CUfunction function, size_t shared, int limit)
{
    int fit = 0, size = limit > 0 && limit < 1024 ? limit : 1024;
    CU_CONTEXT(context);
    CU_ARGUMENT(grid && block && limit >= 0);
    CU_TRY(max_blocks(&fit, function, size, shared));
    *block = size;
    *grid = fit * (int)context->device->multiprocessors;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuOccupancyMaxPotentialBlockSize,
          (int *grid, int *block, CUfunction function, shared_of shared, size_t fixed, int limit),
          best_block(grid, block, function, shared ? shared(1024) : fixed, limit))

CU_API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction function,
                                                          shared_of shared, size_t fixed, int limit,
                                                          unsigned int flags)
{
    CU_ARGUMENT(flags <= 1);
    CU_CALL(best_block(grid, block, function, shared ? shared(1024) : fixed, limit));
}

static CUresult free_shared(size_t *out, CUfunction function, int blocks, int block)
{
    CU_CONTEXT(context);
    CU_ARGUMENT(out && blocks > 0 && block > 0);
    CU_REQUIRE(function_of(function), CUDA_ERROR_INVALID_HANDLE);
    size_t each = context->device->gpu->shared_memory / (unsigned int)blocks;
    *out = each > 1024 ? each - 1024 : 0;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuOccupancyAvailableDynamicSMemPerBlock,
          (size_t * out, CUfunction function, int blocks, int block),
          free_shared(out, function, blocks, block))

static CUresult max_clusters(int *out, CUfunction function, const CUlaunchConfig *config)
{
    CU_CONTEXT(context);
    CU_ARGUMENT(out && config);
    CU_REQUIRE(function_of(function), CUDA_ERROR_INVALID_HANDLE);
    *out = (int)context->device->multiprocessors / 8;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuOccupancyMaxActiveClusters, (int *out, CUfunction function, const CUlaunchConfig *config),
          max_clusters(out, function, config))

CU_API CUresult cuOccupancyMaxPotentialClusterSize(int *out, CUfunction function,
                                                   const CUlaunchConfig *config)
{
    int clusters;
    CU_ENTER();
    CUresult result = out ? max_clusters(&clusters, function, config) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *out = 8;
    CU_RETURN(result);
}
