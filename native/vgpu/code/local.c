/* Every thread that can be resident gets as much local memory as the most demanding kernel that the context has launched
 * needs, and keeps it; 1 KiB of that is in the context from the start (measured on driver 580). */
#include "local.h"

#include "module.h"

enum { THERE_ALREADY = 1024 };

#define HEAP_IN_CONTEXT (8 * MIB)
#define PRINTF_IN_CONTEXT MIB

static uint64_t resident_threads(const struct target *to)
{
    struct process *in = process();
    uint64_t threads = atomic_load_explicit(&in->local_threads[to->position], memory_order_relaxed);
    int processors, each;
    if (!threads &&
        REAL(cuDeviceGetAttribute)(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, to->ordinal) ==
            0 &&
        REAL(cuDeviceGetAttribute)(&each, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, to->ordinal) ==
            0) {
        threads = (uint64_t)processors * (uint64_t)each;
        atomic_store_explicit(&in->local_threads[to->position], threads, memory_order_relaxed);
    }
    return threads;
}

/* Brings an item of a context from what it bears to `bytes`; false: that does not fit. */
static bool resize(const struct target *to, enum kind kind, uint64_t bytes, bool shrink)
{
    struct item item = {.kind = (uint8_t)kind,
                        .key = to->context,
                        .context = to->context,
                        .position = (uint8_t)to->position};
    item_get(kind, to->context, &item);
    uint64_t before = item.bytes;
    if (bytes > before && !charge(to->position, bytes - before))
        return false;
    if (bytes <= before && !shrink)
        return true;
    items_lock();
    struct item *now = item_find(kind, to->context);
    bool same = (now ? now->bytes : 0) == before; /* or another thread was faster */
    item.bytes = bytes;
    bool kept = same && item_insert(&item);
    items_unlock();
    if (bytes > before)
        account_settle(to->position, bytes - before, kept ? bytes - before : 0);
    else if (kept)
        account_release(to->position, before - bytes);
    if (same)
        return kept; /* else there is no room in the books */
    return resize(to, kind, bytes, shrink);
}

static bool ensure(const struct target *to, uint64_t per_thread)
{
    if (per_thread <= THERE_ALREADY)
        return true;
    if (to->position == NO_POSITION)
        return false;
    uint64_t bytes = multiply_capped(per_thread - THERE_ALREADY, resident_threads(to));
    return resize(to, ITEM_LOCAL, round_capped(bytes, PAGE), false);
}

/* A launch takes kernels of libraries for functions too, of which only the other call knows. */
static int local_bytes(CUfunction function, CUdevice ordinal)
{
    int bytes = 0;
    if (REAL(cuFuncGetAttribute)(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function) != CUDA_SUCCESS &&
        REAL(cuKernelGetAttribute)(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, (CUkernel)(void *)function,
                                   ordinal) != CUDA_SUCCESS)
        return 0;
    return bytes;
}

/* `lasting`: it always will, while there is no other context. */
static bool fits(CUfunction function, const struct target *to, bool *lasting)
{
    if (!library_allows_kernel(function, to, lasting))
        return false;
    int bytes = local_bytes(function, to->ordinal);
    if (bytes <= THERE_ALREADY)
        return true;
    *lasting = false; /* in each context anew, so never remembered */
    return ensure(to, (uint64_t)bytes);
}

static bool allows(CUfunction function, CUstream stream, _Atomic uintptr_t *place)
{
    struct target to;
    bool lasting;
    if (!function || !process() || !target_stream(stream, &to))
        return true;
    if (!fits(function, &to, &lasting))
        return false;
    if (lasting)
        atomic_store_explicit(place, (uintptr_t)function, memory_order_relaxed);
    return true;
}

bool local_allows(CUfunction function, CUstream stream)
{
    _Atomic uintptr_t *place = kernel_place(function);
    if (__builtin_expect(atomic_load_explicit(place, memory_order_relaxed) == (uintptr_t)function, 1))
        return true;
    return allows(function, stream, place);
}

/* NULL: the current one. */
static bool target_context(CUcontext context, struct target *out)
{
    return context ? IN_CONTEXT(context, target_current(out), false) : target_current(out);
}

/* The context that a function was loaded in; NULL: not known. */
static CUcontext context_of(CUfunction function)
{
    CUmodule module;
    struct item item;
    if (REAL(cuFuncGetModule)(&module, function) != CUDA_SUCCESS ||
        !item_get(ITEM_MODULE, KEY(module), &item))
        return NULL;
    return (CUcontext)(uintptr_t)item.context;
}

bool local_allows_node(const CUDA_KERNEL_NODE_PARAMS *node, bool with_context)
{
    struct target to;
    bool lasting;
    if (!node || !process())
        return true;
    CUcontext own = node->func ? context_of(node->func) : NULL;
    CUfunction function = node->func || !with_context ? node->func : (CUfunction)(void *)node->kern;
    if (!function || !target_context(own || !with_context ? own : node->ctx, &to))
        return true;
    return fits(function, &to, &lasting);
}

/* Memory for kernels that launch kernels comes with the first such launch, and nothing tells how much. */
static bool raises_unknown(int limit, size_t value)
{
    size_t now = 0;
    return (limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH ||
            limit == CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT) &&
           REAL(cuCtxGetLimit)(&now, limit) == CUDA_SUCCESS && value > now;
}

CU_API CUresult cuCtxSetLimit(int limit, size_t value)
{
    struct target to;
    struct account_view view;
    if (raises_unknown(limit, value) && target_current(&to) &&
        (!account_view(to.position, &view) || view.limit != VGPU_NO_LIMIT))
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    uint64_t inside = limit == CU_LIMIT_MALLOC_HEAP_SIZE ? HEAP_IN_CONTEXT : PRINTF_IN_CONTEXT;
    uint64_t bytes = round_capped(value > inside ? value - inside : 0, PAGE);
    enum kind kind = limit == CU_LIMIT_MALLOC_HEAP_SIZE ? ITEM_HEAP : ITEM_PRINTF;
    struct item before = {0};
    if ((limit != CU_LIMIT_STACK_SIZE && limit != CU_LIMIT_MALLOC_HEAP_SIZE &&
         limit != CU_LIMIT_PRINTF_FIFO_SIZE) ||
        !target_current(&to))
        return REAL(cuCtxSetLimit)(limit, value);
    if (limit == CU_LIMIT_STACK_SIZE)
        return ensure(&to, value) ? REAL(cuCtxSetLimit)(limit, value) : CUDA_ERROR_OUT_OF_MEMORY;
    item_get(kind, to.context, &before);
    if (bytes > before.bytes && !resize(&to, kind, bytes, false))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuCtxSetLimit)(limit, value);
    /* A smaller one is given back, and so is what a refused one had reserved. */
    if (result != CUDA_SUCCESS)
        resize(&to, kind, before.bytes, true);
    else if (bytes < before.bytes)
        resize(&to, kind, bytes, true);
    return result;
}
