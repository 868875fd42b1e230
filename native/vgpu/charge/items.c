#include "items.h"

#include "process/log.h"

#include <string.h>
#include <sys/mman.h>

enum { FIRST_ROOM = 1024 }; /* a power of two, as all that follow */

static uint64_t home_of(enum kind kind, uint64_t key, uint64_t room)
{
    uint64_t hash = (key ^ (uint64_t)kind << 56) * UINT64_C(0x9e3779b97f4a7c15);
    return (hash ^ hash >> 32) & (room - 1);
}

static struct item *probe(struct item *items, uint64_t room, enum kind kind, uint64_t key)
{
    uint64_t at = home_of(kind, key, room);
    while (items[at].kind != ITEM_FREE && (items[at].kind != kind || items[at].key != key))
        at = (at + 1) & (room - 1);
    return &items[at];
}

void items_lock(void)
{
    struct process *in = process();
    if (in)
        lock_take(&in->table);
}

void items_unlock(void)
{
    struct process *in = process();
    if (in)
        lock_drop(&in->table);
}

struct item *item_find(enum kind kind, uint64_t key)
{
    struct process *in = process();
    if (!in || !in->items)
        return NULL;
    struct item *item = probe(in->items, in->item_room, kind, key);
    return item->kind == ITEM_FREE ? NULL : item;
}

static bool grow(struct process *in)
{
    uint64_t room = in->items ? in->item_room * 2 : FIRST_ROOM;
    struct item *items = wiped_memory(room * sizeof(*items));
    if (!items) {
        LOG_ONCE("no memory for the table of allocations: some stay charged when they are freed");
        return false;
    }
    for (uint64_t i = 0; i < in->item_room; i++)
        if (in->items[i].kind != ITEM_FREE)
            *probe(items, room, in->items[i].kind, in->items[i].key) = in->items[i];
    if (in->items)
        munmap(in->items, in->item_room * sizeof(*items));
    in->items = items;
    in->item_room = room;
    return true;
}

static bool make_room(struct process *in)
{
    return in && (in->item_count * 4 < in->item_room * 3 || grow(in) || in->item_count + 1 < in->item_room);
}

bool item_insert(const struct item *item)
{
    struct process *in = process();
    if (!make_room(in))
        return false;
    struct item *at = probe(in->items, in->item_room, item->kind, item->key);
    in->item_count += at->kind == ITEM_FREE;
    *at = *item;
    return true;
}

/* Those behind move up into the hole, where their search would end. */
void item_remove(struct item *item)
{
    struct process *in = process();
    uint64_t mask = in->item_room - 1, hole = (uint64_t)(item - in->items);
    in->item_count--;
    for (uint64_t at = (hole + 1) & mask; in->items[at].kind != ITEM_FREE; at = (at + 1) & mask) {
        uint64_t home = home_of(in->items[at].kind, in->items[at].key, in->item_room);
        if (((at - home) & mask) < ((at - hole) & mask))
            continue;
        in->items[hole] = in->items[at];
        hole = at;
    }
    memset(&in->items[hole], 0, sizeof(*item));
}

bool item_get(enum kind kind, uint64_t key, struct item *out)
{
    items_lock();
    const struct item *item = item_find(kind, key);
    if (item)
        *out = *item;
    items_unlock();
    return item != NULL;
}

bool item_put(const struct item *item)
{
    items_lock();
    bool done = item_insert(item);
    items_unlock();
    return done;
}

bool item_take(enum kind kind, uint64_t key, struct item *out)
{
    items_lock();
    struct item *item = item_find(kind, key);
    if (item) {
        *out = *item;
        item_remove(item);
    }
    items_unlock();
    return item != NULL;
}

bool item_take_next(uint64_t *slot, bool (*fits)(const struct item *, uint64_t), uint64_t asked,
                    struct item *out)
{
    bool found = false;
    items_lock();
    while (*slot < item_slots() && !found) {
        struct item *item = item_at(*slot);
        found = item && fits(item, asked);
        if (found) {
            *out = *item;
            item_remove(item); /* another may have moved here */
        } else {
            ++*slot;
        }
    }
    items_unlock();
    return found;
}

struct item *item_at(uint64_t slot)
{
    struct process *in = process();
    return in && slot < in->item_room && in->items[slot].kind != ITEM_FREE ? &in->items[slot] : NULL;
}

uint64_t item_slots(void)
{
    struct process *in = process();
    return in ? in->item_room : 0;
}

uint64_t item_number(void)
{
    struct process *in = process();
    items_lock();
    uint64_t number = in ? ++in->tickets : 0;
    items_unlock();
    return number;
}
