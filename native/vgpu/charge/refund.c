#include "refund.h"

#include "slice/share.h"

/* One small allocation less in its chunk, which goes with its last. */
static void leave_chunk(const struct item *item)
{
    bool later = item->kind == ITEM_LATER;
    uint64_t bytes = 0, size = later ? item->mark : item->other;
    items_lock();
    struct item *chunk = item_find(ITEM_CHUNK, (later ? item->inode : item->key) / PAGE);
    if (chunk) {
        chunk->other -= size;
        atomic_fetch_add(&process()->small_room[item->position], (int64_t)size);
        if (--chunk->count == 0) {
            bytes = chunk->bytes;
            atomic_fetch_sub(&process()->small_room[item->position], (int64_t)bytes);
            item_remove(chunk);
        }
    }
    items_unlock();
    if (bytes)
        account_release(item->position, bytes);
}

void refund(const struct item *item)
{
    if (item->small && item->share)
        share_give_up(item->share); /* who has it open keeps its chunk, whatever else lies there */
    if (item->kind == ITEM_BOUND)
        memory_drop(item->other);
    else if (item->small && item->kind == ITEM_ARRAY)
        array_leave_small(item);
    else if (item->small)
        leave_chunk(item);
    else if (item->imported)
        share_leave(item->share);
    else {
        if (item->share)
            share_give_up(item->share); /* an importer that has it bears it from here on */
        if (item->bytes)
            account_release(item->position, item->bytes);
    }
}

CUresult refund_if(const struct item *item, CUresult freed)
{
    if (freed == CUDA_SUCCESS)
        refund(item);
    else
        item_put(item);
    return freed;
}
