#include "gauge.h"

#include "holes.h"
#include "refund.h"
#include "process/log.h"

bool gauge_watch(enum kind kind, uint64_t key, int position)
{
    struct process *in = process();
    struct item item = {.kind = (uint8_t)kind, .key = key, .position = (uint8_t)position};
    if (!in || position < 0)
        return false;
    items_lock();
    bool known = item_find(kind, key) != NULL, entered = known || item_insert(&item);
    uint32_t count = atomic_load(&in->gauges);
    if (!known && entered && count < GAUGES) {
        in->watched[count] = (struct watched){key, (uint8_t)kind, (uint8_t)position};
        atomic_store(&in->gauges, count + 1);
    }
    items_unlock();
    if (!known && count >= GAUGES)
        LOG_ONCE("more than %d pools: some are looked at only when they are used", GAUGES);
    if (!known && entered)
        gauge_read(kind, key);
    return entered;
}

void gauge_forget(enum kind kind, uint64_t key)
{
    struct process *in = process();
    items_lock();
    uint32_t count = in ? atomic_load(&in->gauges) : 0;
    for (uint32_t i = 0; i < count; i++)
        if (in->watched[i].kind == kind && in->watched[i].key == key) {
            in->watched[i] = in->watched[count - 1];
            atomic_store(&in->gauges, count - 1);
            break;
        }
    items_unlock();
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
    gauge_forget(ITEM_POOL, key);
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
    bool shrank = false;
    for (uint32_t i = 0; in && i < atomic_load_explicit(&in->gauges, memory_order_relaxed); i++) {
        items_lock();
        struct watched one = in->watched[i];
        items_unlock();
        if (one.position != position)
            continue;
        uint32_t count = atomic_load_explicit(&in->gauges, memory_order_relaxed);
        if (gauge_read(one.kind, one.key) < 0)
            shrank = true;
        if (atomic_load_explicit(&in->gauges, memory_order_relaxed) < count)
            i--; /* it is gone, and another has its place */
    }
    return shrank;
}
