/* Memory in stream order. A pool is charged for what it has reserved, which it takes 32 MiB at a time, and gives back at
 * synchronisations (measured on driver 580). */
#include "process/capture.h"
#include "charge/charge.h"
#include "charge/gauge.h"
#include "swap/block.h"
#include "charge/holes.h"
#include "charge/resident.h"

static uint64_t attribute(CUmemoryPool pool, int which)
{
    uint64_t value = 0;
    return REAL(cuMemPoolGetAttribute)(pool, which, &value) == CUDA_SUCCESS ? value : 0;
}

/* One request, by whichever of the four entries it came. */
struct request {
    size_t size;
    CUmemoryPool pool; /* NULL: the current one of the stream's device */
    CUstream stream;
    bool per_thread;
};

static CUresult ask_driver(CUdeviceptr *out, const struct request *request)
{
    if (request->pool)
        return REAL_IN(request->per_thread, cuMemAllocFromPoolAsync)(out, request->size, request->pool,
                                                                     request->stream);
    return REAL_IN(request->per_thread, cuMemAllocAsync)(out, request->size, request->stream);
}

static bool is_capturing(CUstream stream, bool per_thread)
{
    int status = 0;
    return REAL_IN(per_thread, cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS && status != 0;
}

/* The pool grew, and may not. */
static CUresult undo(CUdeviceptr address, const struct request *request, CUmemoryPool pool)
{
    int mode = capture_leave();
    REAL_IN(request->per_thread, cuMemFreeAsync)(address, request->stream);
    REAL_IN(request->per_thread, cuStreamSynchronize)(request->stream);
    REAL(cuMemPoolTrimTo)(pool, 0);
    gauge_read(ITEM_POOL, KEY(pool));
    capture_return(mode);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* What was freed in its order is free for all. */
static bool is_idle(const struct request *request)
{
    int mode = capture_leave();
    CUresult result = REAL_IN(request->per_thread, cuStreamQuery)(request->stream);
    capture_return(mode);
    return result == CUDA_SUCCESS;
}

/* Nothing is to be had but what the pool keeps. It would grow if it had that in pieces that are too small, until the stream has
 * come to where this is undone: so it is asked only if there is a piece that is large enough. */
static CUresult allocate_inside(CUdeviceptr *out, const struct request *request, CUmemoryPool pool)
{
    CUdeviceptr address;
    uint64_t reserved = attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
             used = attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    if (used > reserved || reserved - used < request->size ||
        !hole_take(pool, request->size, request->stream, is_idle(request)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = ask_driver(&address, request);
    if (result == CUDA_SUCCESS && gauge_read(ITEM_POOL, KEY(pool)) > 0)
        return undo(address, request, pool);
    if (result == CUDA_SUCCESS)
        hole_fill(pool, address, request->size);
    return HAND_OUT(out, address, result);
}

/* A pool that no known call has told of: where its memory is says where it belongs to. Managed memory, which no device
 * may be named for, is the stream's device's. */
static CUresult allocate_unknown(CUdeviceptr *out, const struct request *request, struct target *to)
{
    unsigned int type = 0;
    int ordinal = -1;
    CUdeviceptr at;
    struct account_view view;
    CUresult result = ask_driver(&at, request);
    if (result != CUDA_SUCCESS)
        return result;
    *out = at;
    if (REAL(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at) != CUDA_SUCCESS ||
        type == CU_MEMORYTYPE_HOST)
        return result;
    if (REAL(cuPointerGetAttribute)(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at) == CUDA_SUCCESS &&
        ordinal >= 0 && !target_device(ordinal, to))
        return result;
    if (gauge_watch(ITEM_POOL, KEY(request->pool), to->position) && account_view(to->position, &view) &&
        view.used <= view.limit)
        return result;
    *out = 0;
    return undo(at, request, request->pool);
}

/* What pools keep for later is given back before anything is refused, as the driver does. */
static bool charge_or_trim(const struct target *to, CUmemoryPool pool, uint64_t bytes)
{
    if (charge_quietly(to->position, bytes))
        return true;
    int mode = capture_leave();
    uint64_t used = attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    if (attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) != used)
        REAL(cuMemPoolTrimTo)(pool, used);
    capture_return(mode);
    return charge(to->position, bytes);
}

/* One that the program did not make is watched once it is used: the default pool of a device, or its current one. */
static void meet(CUmemoryPool pool)
{
    int count = 0;
    REAL(cuDeviceGetCount)(&count);
    for (CUdevice ordinal = 0; ordinal < count; ordinal++) {
        CUmemoryPool first = NULL, now = NULL;
        struct target to;
        REAL(cuDeviceGetDefaultMemPool)(&first, ordinal);
        REAL(cuDeviceGetMemPool)(&now, ordinal);
        if ((pool == first || pool == now) && target_device(ordinal, &to))
            gauge_watch(ITEM_POOL, KEY(pool), to.position);
    }
}

static CUresult allocate(CUdeviceptr *out, const struct request *request)
{
    struct target to;
    struct item item;
    CUmemoryPool pool = request->pool;
    /* What is captured is a node of a graph: see graph.c. */
    if (!out || !request->size || !target_stream(request->stream, &to) ||
        is_capturing(request->stream, request->per_thread) ||
        (!pool && REAL(cuDeviceGetMemPool)(&pool, to.ordinal) != CUDA_SUCCESS))
        return ask_driver(out, request);
    if (!item_get(ITEM_POOL, KEY(pool), &item))
        meet(pool);
    if (!item_get(ITEM_POOL, KEY(pool), &item))
        return request->pool ? allocate_unknown(out, request, &to) : CUDA_ERROR_OUT_OF_MEMORY;
    to.position = item.position;
    uint64_t most = round_capped(request->size, POOL_STEP);
    if (!charge_or_trim(&to, pool, most))
        return allocate_inside(out, request, pool);
    CUdeviceptr address;
    CUresult result = WITH_ROOM(to.position, 0, ask_driver(&address, request));
    if (result == CUDA_SUCCESS) {
        gauge_read(ITEM_POOL, KEY(pool));
        hole_fill(pool, address, request->size);
    }
    account_withdraw(to.position, most);
    return HAND_OUT(out, address, result);
}

TWINS(cuMemAllocAsync, (CUdeviceptr * out, size_t size, CUstream stream),
      allocate(out, &(struct request){size, NULL, stream, per_thread}))
TWINS(cuMemAllocFromPoolAsync, (CUdeviceptr * out, size_t size, CUmemoryPool pool, CUstream stream),
      pool ? allocate(out, &(struct request){size, pool, stream, per_thread})
           : REAL_IN(per_thread, cuMemAllocFromPoolAsync)(out, size, pool, stream))

/* Linear memory may be freed so too: it counts until the stream gets there. */
static CUresult free_later(CUdeviceptr address, CUstream stream, bool per_thread)
{
    struct item item, pooled;
    if (is_capturing(stream, per_thread))
        return REAL_IN(per_thread, cuMemFreeAsync)(address,
                                                   stream); /* a node of a graph: nothing is free yet */
    bool known = item_take(ITEM_LINEAR, address, &item);
    bool in_pool = !known && item_take(ITEM_POOLED, address, &pooled);
    if (known && item.block) /* which the driver frees in no stream's order */
        return refund_if(&item, block_free(&item));
    CUresult result = REAL_IN(per_thread, cuMemFreeAsync)(address, stream);
    if (in_pool && result != CUDA_SUCCESS)
        item_put(&pooled);
    else if (in_pool && !(per_thread && (uintptr_t)stream <= 2)) /* a default stream of this thread alone */
        hole_make(&pooled, stream, false);
    if (known && result != CUDA_SUCCESS)
        item_put(&item);
    else if (known)
        later_free(&item, stream, per_thread);
    else if (result == CUDA_SUCCESS)
        pool_freed(address);
    reclaim_soon();
    return result;
}

TWINS(cuMemFreeAsync, (CUdeviceptr address, CUstream stream), HELD(free_later(address, stream, per_thread)))

/* False: there is no room in the books. */
static bool watch(CUmemoryPool pool, const CUmemLocation *where)
{
    struct target to;
    return where->type != CU_MEM_LOCATION_TYPE_DEVICE || !target_device(where->id, &to) ||
           to.position == NO_POSITION || gauge_watch(ITEM_POOL, KEY(pool), to.position);
}

CU_API CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *properties)
{
    struct target to;
    CUmemPoolProps own; /* another thread may change what the program has */
    if (!properties)
        return REAL(cuMemPoolCreate)(out, properties);
    own = *properties;
    if (own.location.type == CU_MEM_LOCATION_TYPE_DEVICE && target_device(own.location.id, &to) &&
        to.position == NO_POSITION)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUmemoryPool pool;
    CUresult result = REAL(cuMemPoolCreate)(out ? &pool : NULL, &own);
    if (result == CUDA_SUCCESS && !watch(pool, &own.location)) {
        REAL(cuMemPoolDestroy)(pool);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return HAND_OUT(out, pool, result);
}

/* False: one that the driver refuses to destroy. The current pool of a device is its default one again. */
static bool retire(CUmemoryPool pool, int position)
{
    struct process *in = process();
    uint64_t none = 0;
    for (CUdevice ordinal = 0; in && ordinal < ORDINALS; ordinal++) {
        CUmemoryPool first, now;
        if (atomic_load_explicit(&in->positions[ordinal], memory_order_relaxed) != position + 1 ||
            REAL(cuDeviceGetDefaultMemPool)(&first, ordinal) != CUDA_SUCCESS ||
            REAL(cuDeviceGetMemPool)(&now, ordinal) != CUDA_SUCCESS)
            continue;
        if (first == pool)
            return false;
        if (now == pool)
            REAL(cuDeviceSetMemPool)(ordinal, first);
    }
    return REAL(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &none) == CUDA_SUCCESS;
}

/* What was allocated from it lives on, of which a pool that is gone tells nothing: so it goes later, see gauge.c. */
CU_API CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    struct item item;
    bool known = item_get(ITEM_POOL, KEY(pool), &item);
    if (known && item.count)
        return CUDA_ERROR_INVALID_VALUE;
    if (known && attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) && retire(pool, item.position)) {
        ITEM_SET(ITEM_POOL, KEY(pool), count, 1);
        gauge_read(ITEM_POOL, KEY(pool)); /* it may have become free meanwhile */
        reclaim_soon();
        return CUDA_SUCCESS;
    }
    known = item_take(ITEM_POOL, KEY(pool), &item);
    holes_forget(pool);
    CUresult result = REAL(cuMemPoolDestroy)(pool);
    if (known && result == CUDA_SUCCESS)
        atomic_fetch_sub(&process()->gauges, 1);
    return known ? refund_if(&item, result) : result;
}

CU_API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    CUresult result = REAL(cuMemPoolTrimTo)(pool, keep);
    if (result == CUDA_SUCCESS)
        gauge_read(ITEM_POOL, KEY(pool));
    return result;
}
