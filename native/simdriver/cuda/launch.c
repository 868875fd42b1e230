/* Launching kernels. */
#include "engine.h"
#include "memory.h"
#include "module.h"
#include "mps.h"
#include "stream.h"

#include <string.h>

enum {
    ATTRIBUTE_COOPERATIVE = 2,
    ATTRIBUTE_PROGRAMMATIC_EVENT = 7,
    ATTRIBUTE_LAUNCH_COMPLETION_EVENT = 12,
    MAX_ATTRIBUTES = 64,
};

/* Ends of the list that cuLaunchKernel takes as `extra`. */
#define EXTRA_END ((void *)0)
#define EXTRA_BUFFER ((void *)1)
#define EXTRA_SIZE ((void *)2)

static void run_kernel(struct op *op)
{
    const struct kernel_call *call = op_data(op);
    const struct builtin *builtin = call->function->builtin;
    if (call->bad_address) {
        pthread_mutex_lock(&driver()->lock);
        context_fail(call->context, CUDA_ERROR_ILLEGAL_ADDRESS);
        mps_fault(driver());
        pthread_mutex_unlock(&driver()->lock);
    } else if (builtin && builtin->run) {
        builtin->run(call->arguments);
    }
}

static bool kernel_is_ready(struct op *op)
{
    const struct kernel_call *call = op_data(op);
    return call->function->builtin->ready(op);
}

static CUresult check_shape(const struct launch *launch, const struct device *device)
{
    static const uint32_t grid_limits[] = {INT32_MAX, 65535, 65535}, block_limits[] = {1024, 1024, 64};
    uint64_t threads = 1;
    for (int i = 0; i < 3; i++) {
        CU_ARGUMENT(launch->grid[i] && launch->grid[i] <= grid_limits[i]);
        CU_ARGUMENT(launch->block[i] && launch->block[i] <= block_limits[i]);
        threads *= launch->block[i];
    }
    CU_ARGUMENT(threads <= 1024 && launch->shared <= device->gpu->shared_memory - 1024);
    return CUDA_SUCCESS;
}

/* Copies the arguments, from either form; `size` is what there is room for. */
static CUresult copy_arguments(struct kernel_call *call, const struct launch *launch)
{
    const struct function *function = call->function;
    if (launch->extra) {
        const void *buffer = NULL;
        size_t size = 0;
        for (void **at = launch->extra; *at != EXTRA_END; at += 2) {
            if (at[0] == EXTRA_BUFFER)
                buffer = at[1];
            else if (at[0] == EXTRA_SIZE)
                size = *(const size_t *)at[1];
            else
                return CUDA_ERROR_INVALID_VALUE;
        }
        CU_ARGUMENT(size <= MAX_ARGUMENTS && (buffer || size == 0));
        if (buffer)
            memcpy(call->arguments, buffer, size < call->size ? size : call->size);
        return CUDA_SUCCESS;
    }
    CU_ARGUMENT(launch->parameters || function->parameter_count == 0);
    for (uint32_t i = 0; i < function->parameter_count; i++) {
        CU_ARGUMENT(launch->parameters[i]);
        memcpy(call->arguments + function->parameters[i].offset, launch->parameters[i],
               function->parameters[i].size);
    }
    return CUDA_SUCCESS;
}

/* The part of the GPU that a launch needs to run all its blocks at once, of FULL_SHARE; more: it cannot. */
static uint64_t share_of(const struct launch *launch, const struct device *device)
{
    uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];
    uint64_t blocks = (uint64_t)launch->grid[0] * launch->grid[1];
    uint64_t room = (uint64_t)device->multiprocessors * device->gpu->threads;
    if (__builtin_mul_overflow(blocks, launch->grid[2], &blocks) || blocks > room)
        return FULL_SHARE + 1;
    uint64_t share = (blocks * threads * FULL_SHARE + room - 1) / room;
    return share > FULL_SHARE ? FULL_SHARE + 1 : share;
}

static uint32_t argument_bytes(const struct function *function)
{
    uint32_t size = 0;
    for (uint32_t i = 0; i < function->parameter_count; i++) {
        uint32_t end = function->parameters[i].offset + function->parameters[i].size;
        size = end > size ? end : size;
    }
    return size;
}

CUresult launch_make(struct function *function, const struct launch *launch, struct context *context,
                     struct op **out)
{
    const struct builtin *builtin = function->builtin;
    uint32_t size = argument_bytes(function);
    CU_TRY(check_shape(launch, context->device));
    CU_TRY(context_local(context, (uint64_t)function->attributes[CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES]));
    CU_TRY(module_place_variables(function->module, context));
    uint64_t share = share_of(launch, context->device);
    CU_REQUIRE(!launch->cooperative || share <= FULL_SHARE, CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    struct op *op = op_new(OP_KERNEL, sizeof(struct kernel_call) + size);
    CU_REQUIRE(op, CUDA_ERROR_OUT_OF_MEMORY);
    struct kernel_call *call = op_data(op);
    *call = (struct kernel_call){
        .function = function, .context = context, .shared = launch->shared, .size = size};
    memcpy(call->grid, launch->grid, sizeof(call->grid));
    memcpy(call->block, launch->block, sizeof(call->block));
    CUresult result = copy_arguments(call, launch);
    if (result != CUDA_SUCCESS) {
        op_free(op);
        return result;
    }
    op->share = (uint32_t)(share < FULL_SHARE ? share : FULL_SHARE);
    op->duration = builtin ? builtin->duration(call->arguments) : function->duration;
    op->ready = builtin && builtin->ready ? kernel_is_ready : NULL;
    call->bad_address = builtin && builtin->fits && !builtin->fits(call->arguments);
    op->run = call->bad_address || (builtin && builtin->run) ? run_kernel : NULL;
    function->loaded = true;
    *out = op;
    return CUDA_SUCCESS;
}

static CUresult launch_on(CUfunction handle, const struct launch *launch)
{
    struct op *op;
    CU_STREAM(stream, launch->stream); /* which says the context, even where none is current */
    struct function *function = function_of(handle);
    CU_REQUIRE(function, CUDA_ERROR_INVALID_HANDLE);
    CU_REQUIRE(!function->module->context || function->module->context == stream->context,
               CUDA_ERROR_INVALID_HANDLE);
    CU_TRY(launch_make(function, launch, stream->context, &op));
    return engine_submit(stream, op);
}

#define LAUNCH(on, is_cooperative, given_extra)                                                             \
    (struct launch)                                                                                         \
    {                                                                                                       \
        {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, on, parameters, given_extra,         \
            is_cooperative                                                                                  \
    }

#define SHAPE                                                                                               \
    unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,                    \
        unsigned int block_y, unsigned int block_z, unsigned int shared, CUstream stream, void **parameters

CU_TWINS(_ptsz, cuLaunchKernel, (CUfunction function, SHAPE, void **extra),
         launch_on(function, &LAUNCH(OWN(stream), false, extra)))
CU_TWINS(_ptsz, cuLaunchCooperativeKernel, (CUfunction function, SHAPE),
         launch_on(function, &LAUNCH(OWN(stream), true, NULL)))

/* An event that a launch attribute names is recorded behind the kernel. */
static CUresult record_events(const CUlaunchConfig *config, CUstream on)
{
    CU_STREAM(stream, on);
    for (unsigned int i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttribute *attribute = &config->attrs[i];
        if (attribute->id != ATTRIBUTE_PROGRAMMATIC_EVENT &&
            attribute->id != ATTRIBUTE_LAUNCH_COMPLETION_EVENT)
            continue;
        struct event *event = event_of(attribute->value.launchCompletionEvent.event);
        CU_REQUIRE(event, CUDA_ERROR_INVALID_HANDLE);
        CU_TRY(engine_submit(stream, op_event(OP_RECORD, event)));
    }
    return CUDA_SUCCESS;
}

static CUresult launch_ex(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra,
                          bool per_thread)
{
    CU_ARGUMENT(config && config->numAttrs <= MAX_ATTRIBUTES && (config->attrs || config->numAttrs == 0));
    struct launch launch = {
        .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
        .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
        .shared = config->sharedMemBytes,
        .stream = per_thread ? PER_THREAD(config->hStream) : config->hStream,
        .parameters = parameters,
        .extra = extra,
    };
    for (unsigned int i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == ATTRIBUTE_COOPERATIVE)
            launch.cooperative = config->attrs[i].value.cooperative != 0;
    CU_TRY(launch_on(function, &launch));
    return record_events(config, launch.stream);
}

CU_TWINS(_ptsz, cuLaunchKernelEx,
         (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra),
         launch_ex(config, function, parameters, extra, of_thread))

static CUresult launch_many(const CUDA_LAUNCH_PARAMS *list, unsigned int count)
{
    CU_ARGUMENT(list && count && count <= driver()->device_count);
    for (unsigned int i = 0; i < count; i++)
        CU_TRY(launch_on(list[i].function,
                         &(struct launch){{list[i].gridDimX, list[i].gridDimY, list[i].gridDimZ},
                                          {list[i].blockDimX, list[i].blockDimY, list[i].blockDimZ},
                                          list[i].sharedMemBytes,
                                          list[i].hStream,
                                          list[i].kernelParams,
                                          NULL,
                                          true}));
    return CUDA_SUCCESS;
}

CU_API CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count,
                                                     unsigned int flags)
{
    CU_ARGUMENT(flags <= 3);
    CU_CALL(launch_many(list, count));
}
