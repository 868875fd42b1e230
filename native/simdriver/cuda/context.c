/* Contexts and the stack of them that each thread has. */
#include "driver.h"
#include "engine.h"
#include "memory.h"
#include "module.h"
#include "rm.h"
#include "stream.h"

enum { STACK = 64, DEFAULT_LOCAL = 1024 };

static _Thread_local struct {
    struct context *at[STACK];
    int depth;
} stack;

/* What a handle stands for; NULL: another thread may have destroyed it. */
static struct context *context_at(void *handle)
{
    if (handle_is(handle, KIND_GREEN))
        return ((struct green *)handle)->device->primary;
    return handle_is(handle, KIND_CONTEXT) ? handle : NULL;
}

struct context *context_current(void)
{
    return context_at(stack.depth ? stack.at[stack.depth - 1] : NULL);
}

static CUresult push(struct context *context)
{
    CU_REQUIRE(stack.depth < STACK, CUDA_ERROR_OUT_OF_MEMORY);
    stack.at[stack.depth++] = context;
    return CUDA_SUCCESS;
}

/* While a context is made the driver works on the device again and again, each time for a moment. On an H200 (driver
 * 580.159.04) the call takes 160 ms. In the second half of that, a process that has work loses 11 ms in about 31 pieces. */
enum { SETUP_STEPS = 32, SETUP_NS = 10000, SETUP_EACH_NS = 400000, BEFORE_SETUP_NS = 80000000 };

extern void sim_clock_spend(uint64_t ns) __attribute__((weak));

static void set_up(struct context *context)
{
    if (!turn_takes_time())
        return;
    for (int i = 0; i < SETUP_STEPS; i++) {
        if (sim_clock_spend) {
            pthread_mutex_unlock(&driver()->lock);
            sim_clock_spend(i ? SETUP_EACH_NS : BEFORE_SETUP_NS);
            pthread_mutex_lock(&driver()->lock);
        }
        struct op *op = op_new(OP_KERNEL, 0);
        if (!op)
            return;
        op->share = FULL_SHARE;
        op->duration = SETUP_NS;
        if (engine_submit(context->legacy, op) != CUDA_SUCCESS)
            return;
        engine_wait_stream(context->legacy);
    }
}

CUresult context_create(struct device *device, unsigned int flags, struct context **out)
{
    struct driver *in = driver();
    uint64_t bytes = device->gpu->context_memory;
    if (device->mig && bytes > device->capacity / 8)
        bytes = device->capacity / 8;
    CU_TRY(ledger_charge(device, bytes));
    struct context *context = handle_new(KIND_CONTEXT, sizeof(*context));
    if (!context) {
        ledger_refund(device, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    context->device = device;
    context->flags = flags;
    context->id = ++in->next_id;
    context->charged = bytes;
    context->local_bytes = DEFAULT_LOCAL;
    context->limits[CU_LIMIT_STACK_SIZE] = DEFAULT_LOCAL;
    context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = MIB;
    context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 * MIB;
    context->limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
    context->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
    context->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
    CUresult result = rm_begin(context);
    if (result == CUDA_SUCCESS) {
        result = stream_create(context, 0, 0, &context->legacy);
        if (result != CUDA_SUCCESS)
            rm_end(context);
    }
    if (result != CUDA_SUCCESS) {
        ledger_refund(device, bytes);
        handle_free(context);
        return result;
    }
    set_up(context);
    context->next = in->contexts;
    in->contexts = context;
    *out = context;
    return CUDA_SUCCESS;
}

void context_destroy(struct context *context)
{
    struct driver *in = driver();
    engine_drain_context(context);
    modules_unload(context);
    arrays_forget(context);
    memory_free_context(context);
    streams_destroy(context);
    events_destroy(context);
    ledger_refund(context->device, context->charged + context->local_charged + context->heap_charged);
    for (struct context **at = &in->contexts; *at; at = &(*at)->next)
        if (*at == context) {
            *at = context->next;
            break;
        }
    rm_end(context);
    handle_free(context);
}

void context_fail(struct context *context, CUresult error)
{
    if (context->error == CUDA_SUCCESS)
        context->error = error;
}

/* Local memory is there for every thread that can be resident, from the first launch that needs more of it. */
CUresult context_local(struct context *context, uint64_t bytes_per_thread)
{
    struct device *device = context->device;
    if (bytes_per_thread <= context->local_bytes)
        return CUDA_SUCCESS;
    uint64_t threads = (uint64_t)device->multiprocessors * device->gpu->threads;
    uint64_t more = threads * (bytes_per_thread - context->local_bytes);
    CU_TRY(ledger_charge(device, more));
    context->local_bytes = bytes_per_thread;
    context->local_charged += more;
    return CUDA_SUCCESS;
}

static CUresult create(CUcontext *out, unsigned int flags, CUdevice ordinal)
{
    struct device *device = device_at(ordinal);
    struct context *context;
    CU_ARGUMENT(out);
    CU_REQUIRE(device, CUDA_ERROR_INVALID_DEVICE);
    CU_REQUIRE(stack.depth < STACK, CUDA_ERROR_OUT_OF_MEMORY);
    CU_TRY(context_create(device, flags, &context));
    *out = context;
    return push(context);
}

/* Also the first version, whose handles were the same. */
CU_EXPORT(cuCtxCreate_v2, (CUcontext * out, unsigned int flags, CUdevice device), create(out, flags, device))
CU_EXPORT(cuCtxCreate, (CUcontext * out, unsigned int flags, CUdevice device), create(out, flags, device))

CU_API CUresult cuCtxCreate_v3(CUcontext *out, void *affinity, int count, unsigned int flags,
                               CUdevice device)
{
    CU_REQUIRE(!affinity && count == 0, CUDA_ERROR_NOT_SUPPORTED);
    CU_CALL(create(out, flags, device));
}

CU_API CUresult cuCtxCreate_v4(CUcontext *out, void *parameters, unsigned int flags, CUdevice device)
{
    CU_REQUIRE(!parameters, CUDA_ERROR_NOT_SUPPORTED);
    CU_CALL(create(out, flags, device));
}

static CUresult destroy(struct context *context)
{
    CU_REQUIRE(handle_is(context, KIND_CONTEXT), CUDA_ERROR_INVALID_CONTEXT);
    CU_REQUIRE(!context->primary, CUDA_ERROR_INVALID_CONTEXT);
    if (stack.depth && stack.at[stack.depth - 1] == context)
        stack.depth--;
    context_destroy(context);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuCtxDestroy_v2, (CUcontext context), destroy(context))
CU_EXPORT(cuCtxDestroy, (CUcontext context), destroy(context))

static CUresult push_checked(struct context *context)
{
    CU_REQUIRE(context_at(context), CUDA_ERROR_INVALID_CONTEXT);
    return push(context);
}

CU_EXPORT(cuCtxPushCurrent_v2, (CUcontext context), push_checked(context))
CU_EXPORT(cuCtxPushCurrent, (CUcontext context), push_checked(context))

static CUresult pop(CUcontext *out)
{
    CU_REQUIRE(stack.depth, CUDA_ERROR_INVALID_CONTEXT);
    stack.depth--;
    if (out)
        *out = stack.at[stack.depth];
    return CUDA_SUCCESS;
}

CU_EXPORT(cuCtxPopCurrent_v2, (CUcontext * out), pop(out))
CU_EXPORT(cuCtxPopCurrent, (CUcontext * out), pop(out))

static CUresult set_current(struct context *context)
{
    CU_REQUIRE(!context || context_at(context), CUDA_ERROR_INVALID_CONTEXT);
    if (stack.depth)
        stack.depth--;
    return context ? push(context) : CUDA_SUCCESS;
}

CU_EXPORT(cuCtxSetCurrent, (CUcontext context), set_current(context))

static CUresult get_current(CUcontext *out)
{
    CU_ARGUMENT(out);
    *out = context_current() ? stack.at[stack.depth - 1] : NULL;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuCtxGetCurrent, (CUcontext * out), get_current(out))

static CUresult get_device(CUdevice *out, struct context *context)
{
    CU_ARGUMENT(out);
    context = context_at(context);
    CU_REQUIRE(context, CUDA_ERROR_INVALID_CONTEXT);
    *out = context->device->ordinal;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuCtxGetDevice, (CUdevice * out), get_device(out, context_current()))
CU_EXPORT(cuCtxGetDevice_v2, (CUdevice * out, CUcontext context), get_device(out, context))

static CUresult synchronize(struct context *context)
{
    context = context_at(context);
    CU_REQUIRE(context, CUDA_ERROR_INVALID_CONTEXT);
    CU_REQUIRE(!context_is_capturing(context), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    engine_wait_context(context);
    return context->error;
}

CU_EXPORT_RESIDENT(cuCtxSynchronize, (void), synchronize(context_current()))
CU_EXPORT_RESIDENT(cuCtxSynchronize_v2, (CUcontext context), synchronize(context))
