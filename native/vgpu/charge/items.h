/* What this process holds of the driver's memory: one table, found by kind and by the driver's own handle or address. */
#pragma once

#include "process/process.h"

enum kind {
    ITEM_FREE,
    ITEM_LINEAR, /* key: address */
    ITEM_CHUNK,  /* key: address >> 21; `count` small allocations, `other` bytes of them */
    ITEM_LATER, /* key: a number; linear memory: free when the event `other` is due; `inode` address, `mark` size */
    ITEM_POOL,   /* key: pool; `bytes` that it has reserved, `count` 1 once the program destroyed it */
    ITEM_EXPORT, /* key: address in a pool that was exported; `share` */
    ITEM_GRAPHS, /* key: ordinal + 1; `bytes` that graphs have reserved; `mark`: see graph.c */
    ITEM_EXEC, /* key: instance of a graph; `other` bytes of its memory nodes; `count`, `small`: likewise */
    ITEM_MEMORY,  /* key: a number; what cuMemCreate made, `count` handles and mappings */
    ITEM_HANDLE,  /* key: handle; `other` number of the memory, `count` references */
    ITEM_MAPPING, /* key: address; `other` likewise, `bytes` mapped */
    ITEM_BOUND,   /* key: of array and memory; `other` number of the memory, `bytes` is the array */
    ITEM_ARRAY,   /* key: array */
    ITEM_SMALL,   /* key: position + 1; `other` bytes of arrays that share chunks */
    ITEM_CONTEXT, /* key: context */
    ITEM_PRIMARY, /* key: ordinal + 1; `context` */
    ITEM_GREEN,   /* key: green context; `other` ordinal */
    ITEM_LOCAL,   /* key: context; `other` bytes a thread */
    ITEM_HEAP,    /* key: context */
    ITEM_PRINTF,  /* key: context */
    ITEM_MODULE,  /* key: module, or library */
    ITEM_LIBRARY, /* key: library; `bytes` in each context, at least if `small` is 0; `count` 1 once it was unloaded */
    ITEM_LOADED,  /* key: of library and context; `other` the library */
    ITEM_KERNEL,  /* key: kernel; `other` its library */
    ITEM_CODE,    /* key: position + 1; what the first module of the process takes */
    ITEM_IMPORT,  /* key: address */
    ITEM_CAPTURE, /* key: stream that captures, or thread whose own one does */
    ITEM_POOLED,  /* key: address; `other` bytes of the pool `mark`, which bears them */
};

#define KEY(handle) ((uint64_t)(uintptr_t)(handle)) /* of the driver's, an address */

struct item {
    uint64_t key;
    uint64_t bytes;   /* committed */
    uint64_t context; /* whose end is its end; 0: none */
    uint64_t other;
    uint64_t mark;          /* of the descriptors of an ITEM_MEMORY: see descriptor.h; 0: it never had one */
    uint64_t device, inode; /* of these, to which the probe is `other` - 1 */
    uint32_t count;
    uint32_t share; /* see share.h; 0: not shared */
    uint8_t kind;
    uint8_t position;
    uint8_t small;    /* in a chunk, which bears the bytes */
    uint8_t imported; /* of another process, which bears them */
    uint8_t ordinal;
    uint8_t foreign; /* of another container, charged for what is mapped of it */
    uint8_t block;   /* linear memory that can be moved: see block.h */
    uint8_t unused;
};

/* Copies; false: none, or no room. */
bool item_get(enum kind kind, uint64_t key, struct item *out);
bool item_put(const struct item *item); /* one with the same key is replaced */
bool item_take(enum kind kind, uint64_t key, struct item *out);

/* Takes the next one, from `slot` on, that `fits` what is asked for; false: there is none. The lock is held meanwhile. */
bool item_take_next(uint64_t *slot, bool (*fits)(const struct item *, uint64_t), uint64_t asked,
                    struct item *out);

/* For more than one step at a time. A pointer is good until the next item is put or taken. */
void items_lock(void);
void items_unlock(void);
struct item *item_find(enum kind kind, uint64_t key);
bool item_insert(const struct item *item);
void item_remove(struct item *item);

/* Of one that is there. */
#define ITEM_SET(kind, key, member, value)                                                                  \
    do {                                                                                                    \
        items_lock();                                                                                       \
        struct item *set_ = item_find(kind, key);                                                           \
        if (set_)                                                                                           \
            set_->member = (value);                                                                         \
        items_unlock();                                                                                     \
    } while (0)

/* Every item, in slots from 0 to item_slots(); NULL: an empty one. Slots move when items are put or removed. */
struct item *item_at(uint64_t slot);
uint64_t item_slots(void);

#define EACH_ITEM(at)                                                                                       \
    for (uint64_t slot_ = 0; slot_ < item_slots(); slot_++)                                                 \
        for (struct item *at = item_at(slot_); at; at = NULL)

uint64_t item_number(void); /* never the same twice */
