#include "gauge.h"

#include "charge.h"

void gauge_watch(enum kind kind, uint64_t key, int position)
{
    struct process *in = process();
    struct item item = {.kind = (uint8_t)kind, .key = key, .position = (uint8_t)position};
    if (!in || position < 0)
        return;
    items_lock();
    bool known = item_find(kind, key) != NULL;
    if (!known && item_insert(&item))
        atomic_fetch_add(&in->gauges, 1);
    items_unlock();
    if (!known)
        gauge_read(kind, key);
}

static bool ask_driver(enum kind kind, uint64_t key, uint64_t *bytes)
{
    *bytes = 0;
    if (kind == ITEM_POOL)
        return REAL(cuMemPoolGetAttribute)((CUmemoryPool)(uintptr_t)key, CU_POOL_RESERVED, bytes) ==
               CUDA_SUCCESS;
    return REAL(cuDeviceGetGraphMemAttribute)((CUdevice)key - 1, CU_GRAPH_MEMORY_RESERVED, bytes) ==
           CUDA_SUCCESS;
}

int64_t gauge_read(enum kind kind, uint64_t key)
{
    uint64_t bytes, ticket = item_number(), before = 0;
    int position = NO_POSITION;
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
    if (!in || !atomic_load(&in->gauges))
        return false;
    for (uint64_t slot = 0; slot < item_slots(); slot++) {
        struct item item = {0};
        items_lock();
        const struct item *at = item_at(slot);
        if (at && at->position == position && (at->kind == ITEM_POOL || at->kind == ITEM_GRAPHS))
            item = *at;
        items_unlock();
        if (item.kind != ITEM_FREE && gauge_read(item.kind, item.key) < 0)
            shrank = true;
    }
    return shrank;
}
