#include "gauge.h"

#include "holes.h"
#include "refund.h"

enum { GAUGES = 128 }; /* of a device that are looked at together: the others only when they are used */

bool gauge_watch(enum kind kind, uint64_t key, int position)
{
    struct process *in = process();
    struct item item = {.kind = (uint8_t)kind, .key = key, .position = (uint8_t)position};
    if (!in || position < 0)
        return false;
    items_lock();
    bool known = item_find(kind, key) != NULL, entered = known || item_insert(&item);
    items_unlock();
    if (!known && entered) {
        atomic_fetch_add(&in->gauges, 1);
        gauge_read(kind, key);
    }
    return entered;
}

static bool ask_driver(enum kind kind, uint64_t key, uint64_t *bytes)
{
    *bytes = 0;
    if (kind == ITEM_POOL)
        return REAL(cuMemPoolGetAttribute)((CUmemoryPool)(uintptr_t)key,
                                           CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes) == CUDA_SUCCESS;
    return REAL(cuDeviceGetGraphMemAttribute)((CUdevice)key - 1, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                              bytes) == CUDA_SUCCESS;
}

/* The program destroyed the pool before its last memory was free: the driver is told once that is. */
static bool end_pool(uint64_t key)
{
    CUmemoryPool pool = (CUmemoryPool)(uintptr_t)key;
    struct item item;
    uint64_t used = 1, reserved = 1;
    if (REAL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) != CUDA_SUCCESS || used ||
        REAL(cuMemPoolTrimTo)(pool, 0) != CUDA_SUCCESS ||
        REAL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) != CUDA_SUCCESS ||
        reserved || !item_take(ITEM_POOL, key, &item))
        return false;
    atomic_fetch_sub(&process()->gauges, 1);
    REAL(cuMemPoolDestroy)(pool);
    refund(&item);
    return true;
}

int64_t gauge_read(enum kind kind, uint64_t key)
{
    uint64_t bytes, ticket = item_number(), before = 0;
    int position = NO_POSITION;
    struct item pool;
    if (kind == ITEM_POOL && item_get(kind, key, &pool) && pool.count && end_pool(key))
        return -(int64_t)pool.bytes;
    if (!ask_driver(kind, key, &bytes))
        return 0;
    bytes = ROUND_UP(bytes, PAGE);
    items_lock();
    struct item *item = item_find(kind, key);
    /* Of two threads that ask at once, the answer to the later question counts. */
    if (item && item->other < ticket) {
        position = item->position;
        before = item->bytes;
        item->bytes = bytes;
        item->other = ticket;
    }
    items_unlock();
    if (position == NO_POSITION || before == bytes)
        return 0;
    if (kind == ITEM_POOL && bytes < before)
        holes_forget((CUmemoryPool)(uintptr_t)key);
    if (bytes > before)
        account_force(position, bytes - before);
    else
        account_release(position, before - bytes);
    return (int64_t)(bytes - before);
}

bool gauges_read(int position)
{
    struct process *in = process();
    struct item found[GAUGES];
    int count = 0;
    bool shrank = false;
    if (!in || !atomic_load_explicit(&in->gauges, memory_order_relaxed))
        return false;
    items_lock();
    EACH_ITEM (item)
        if ((item->kind == ITEM_POOL || item->kind == ITEM_GRAPHS) && item->position == position &&
            count < GAUGES)
            found[count++] = *item;
    items_unlock();
    for (int i = 0; i < count; i++)
        shrank |= gauge_read(found[i].kind, found[i].key) < 0;
    return shrank;
}
