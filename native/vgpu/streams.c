/* The streams with unfinished work: a table that is found by a hash, and grows. */
#include "meter.h"

#include <string.h>
#include <sys/mman.h>

enum { FIRST_ROOM = 32 };

void *meter_pages(size_t size)
{
    void *found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return found == MAP_FAILED ? NULL : found;
}

/* By the handle alone, for who knows no more; but those of streams that are gone are all the same. */
static uint32_t hash_of(uint64_t handle, uint64_t thread)
{
    return (uint32_t)(((handle == STREAM_GONE ? thread : handle) * UINT64_C(0x9e3779b97f4a7c15)) >> 32);
}

struct stream *stream_at(struct meter *meter, uint64_t handle, uint32_t step)
{
    struct stream *stream = &meter->streams[(hash_of(handle, 0) + step) & (meter->room - 1)];
    return step < meter->room && stream->handle ? stream : NULL;
}

/* Where it is, or else where it would be put; NULL: the table is full. */
static struct stream *place_of(struct meter *meter, uint64_t handle, uint64_t context, uint64_t thread)
{
    uint32_t at = hash_of(handle, thread);
    struct stream *free_place = NULL;
    for (uint32_t step = 0; step < meter->room; step++, at++) {
        struct stream *stream = &meter->streams[at & (meter->room - 1)];
        if (stream->handle == handle && stream->context == context && stream->thread == thread)
            return stream;
        if (!stream_is_used(stream) && !free_place)
            free_place = stream;
        if (!stream->handle)
            break;
    }
    return free_place;
}

static bool grow(struct meter *meter)
{
    struct stream *old = meter->streams;
    uint32_t before = meter->room, room = before ? before : FIRST_ROOM;
    if (meter->used * 2 >= room)
        room *= 2;
    struct stream *made = meter_pages(room * sizeof(*made));
    if (!made)
        return false;
    meter->streams = made;
    meter->room = room;
    for (uint32_t i = 0; i < before; i++)
        if (stream_is_used(&old[i]))
            *place_of(meter, old[i].handle, old[i].context, old[i].thread) = old[i];
    if (old)
        munmap(old, before * sizeof(*old));
    return true;
}

struct stream *stream_find(struct meter *meter, uint64_t handle, uint64_t context, uint64_t thread)
{
    struct stream *found = place_of(meter, handle, context, thread);
    return found && stream_is_used(found) ? found : NULL;
}

static uint32_t context_place(struct meter *meter, uint64_t context)
{
    uint32_t free_place = METER_CONTEXTS;
    for (uint32_t i = 0; i < METER_CONTEXTS; i++) {
        if (meter->contexts[i].context == context)
            return i;
        if (!meter->contexts[i].context && free_place == METER_CONTEXTS)
            free_place = i;
    }
    if (free_place < METER_CONTEXTS)
        meter->contexts[free_place].context = context;
    return free_place;
}

/* NULL: no memory. */
struct stream *stream_add(struct meter *meter, uint64_t handle, uint64_t context, uint64_t thread)
{
    struct stream *found = place_of(meter, handle, context, thread);
    if (found && stream_is_used(found))
        return found;
    if (!found || meter->used * 4 >= meter->room * 3) {
        if (!grow(meter))
            return NULL;
        found = place_of(meter, handle, context, thread);
    }
    memset(found, 0, offsetof(struct stream, ring));
    found->handle = handle;
    found->context = context;
    found->thread = thread;
    found->place = context_place(meter, context);
    meter->used++;
    return found;
}

void stream_forget(struct meter *meter, struct stream *stream)
{
    uint32_t at = (uint32_t)(stream - meter->streams), mask = meter->room - 1;
    marks_drop(meter, stream);
    meter->under_way -= (uint32_t)least(stream->begun - stream->ended, meter->under_way);
    meter->used--;
    stream->handle = STREAM_WAS;
    if (!meter->streams[(at + 1) & mask].handle)
        for (; meter->streams[at & mask].handle == STREAM_WAS; at--)
            meter->streams[at & mask].handle = 0;
}

bool streams_have_marks(struct meter *meter)
{
    bool some = false;
    lock_take(&meter->lock);
    for (uint32_t i = 0; i < meter->room && !some; i++)
        some = stream_is_used(&meter->streams[i]) && meter->streams[i].count;
    lock_drop(&meter->lock);
    return some;
}
