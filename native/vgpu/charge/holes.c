#include "holes.h"

#include "slice/ledger.h"

enum { HOLES = 256 };

/* Under the lock of the items. */
static struct hole {
    uint64_t from, to; /* none: equal */
    CUmemoryPool pool;
    CUstream stream;
    bool any;
} holes[HOLES];

static unsigned int oldest;

/* What is left of a hole is its larger end. */
static void cut(struct hole *hole, uint64_t from, uint64_t to)
{
    if (to <= hole->from || hole->to <= from)
        return;
    uint64_t before = subtract_capped(from, hole->from), behind = subtract_capped(hole->to, to);
    if (before > behind)
        hole->to = from;
    else
        hole->from = hole->to - behind;
}

void hole_fill(CUmemoryPool pool, CUdeviceptr at, uint64_t size)
{
    struct item item = {.kind = ITEM_POOLED, .key = at, .other = size, .mark = KEY(pool)};
    items_lock();
    for (int i = 0; i < HOLES; i++)
        if (holes[i].to > holes[i].from)
            cut(&holes[i], at, at + size);
    item_insert(&item);
    items_unlock();
}

void hole_make(const struct item *item, CUstream stream, bool any)
{
    items_lock();
    holes[oldest++ % HOLES] =
        (struct hole){item->key, item->key + item->other, (CUmemoryPool)(uintptr_t)item->mark, stream, any};
    items_unlock();
}

/* While its stream has not come to the free, the driver gives a piece whole, and none that is much larger. */
static bool fits(const struct hole *hole, uint64_t size, CUstream stream)
{
    uint64_t room = hole->to - hole->from;
    return room >= size && (hole->any || (hole->stream == stream && room / 2 <= size));
}

bool hole_take(CUmemoryPool pool, uint64_t size, CUstream stream, bool idle)
{
    bool found = false;
    items_lock();
    for (int i = 0; i < HOLES && !found; i++) {
        struct hole *hole = &holes[i];
        if (hole->to <= hole->from || hole->pool != pool)
            continue;
        hole->any |= idle && hole->stream == stream;
        found = fits(hole, size, stream);
        if (found)
            hole->to = hole->any ? hole->to - size : hole->from;
    }
    items_unlock();
    return found;
}

void holes_forget(CUmemoryPool pool)
{
    items_lock();
    for (int i = 0; i < HOLES; i++)
        if (holes[i].pool == pool)
            holes[i].to = holes[i].from;
    items_unlock();
}
