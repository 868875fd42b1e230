/* The pointers that programs hold, with their kinds: a stale or foreign one is refused, never followed. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#define KIND_SHIFT 56
#define POINTER(entry) ((entry) & ((UINT64_C(1) << KIND_SHIFT) - 1))
#define REMOVED UINT64_C(1)

static size_t place(const struct driver *in, uint64_t pointer)
{
    return (size_t)((pointer >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (in->handle_slots - 1);
}

static void put(struct driver *in, uint64_t entry)
{
    size_t at = place(in, POINTER(entry));
    while (in->handles[at])
        at = (at + 1) & (in->handle_slots - 1);
    in->handles[at] = entry;
}

/* Keeps a quarter of the table free; entries that mark removals go with each rebuild. */
static bool grow(struct driver *in)
{
    size_t old_slots = in->handle_slots, live = 0;
    uint64_t *old = in->handles;
    if (old_slots && in->handle_count < old_slots / 4 * 3)
        return true;
    for (size_t i = 0; i < old_slots; i++)
        live += old[i] > REMOVED;
    size_t slots = old_slots ? old_slots : 256;
    while (live >= slots / 2)
        slots *= 2;
    uint64_t *table = calloc(slots, sizeof(*table));
    if (!table)
        return false;
    in->handles = table;
    in->handle_slots = slots;
    in->handle_count = live;
    for (size_t i = 0; i < old_slots; i++)
        if (old[i] > REMOVED)
            put(in, old[i]);
    free(old);
    return true;
}

bool handle_remember(void *object, enum kind kind)
{
    struct driver *in = driver();
    if (!grow(in))
        return false;
    put(in, (uint64_t)(uintptr_t)object | (uint64_t)kind << KIND_SHIFT);
    in->handle_count++;
    return true;
}

/* The driver gives handles again at once. For libraries, which are all of one size, this one does so too. */
static void *freed_library;

void *handle_new(enum kind kind, size_t size)
{
    void *object = kind == KIND_LIBRARY ? freed_library : NULL;
    if (object)
        memset(object, 0, size);
    else
        object = calloc(1, size);
    if (kind == KIND_LIBRARY)
        freed_library = NULL;
    if (object && !handle_remember(object, kind)) {
        free(object);
        object = NULL;
    }
    return object;
}

static uint64_t *find(struct driver *in, const void *object)
{
    uint64_t pointer = (uint64_t)(uintptr_t)object;
    if (!in->handle_slots || !object || pointer >> KIND_SHIFT)
        return NULL;
    for (size_t at = place(in, pointer); in->handles[at]; at = (at + 1) & (in->handle_slots - 1))
        if (in->handles[at] != REMOVED && POINTER(in->handles[at]) == pointer)
            return &in->handles[at];
    return NULL;
}

void handle_forget(void *object)
{
    uint64_t *entry = find(driver(), object);
    if (entry)
        *entry = REMOVED;
}

void handle_free(void *object)
{
    bool kept = handle_is(object, KIND_LIBRARY);
    handle_forget(object);
    free(kept ? freed_library : object);
    if (kept)
        freed_library = object;
}

bool handle_is(const void *object, enum kind kind)
{
    const uint64_t *entry = find(driver(), object);
    return entry && *entry >> KIND_SHIFT == (uint64_t)kind;
}

void handle_each(enum kind kind, void (*visit)(void *object, void *data), void *data)
{
    struct driver *in = driver();
    for (size_t i = 0; i < in->handle_slots; i++)
        if (in->handles[i] >> KIND_SHIFT == (uint64_t)kind)
            visit((void *)(uintptr_t)POINTER(in->handles[i]), data);
}
