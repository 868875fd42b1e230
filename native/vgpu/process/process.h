/* What this process knows, in memory that fork() wipes: a child starts with no slot, no locks held and no accounts, as
 * the driver, which does not work in it, has given it nothing. */
#pragma once

#include "layout.h"
#include "system.h"

enum { ORDINALS = 64 };

struct own {
    uint64_t committed, tentative;
};

struct item;
struct pacer;

struct process {
    struct lock account; /* guards all down to `table`; never held while the driver is called */
    int ledger_fd;       /* + 1 */
    int quota_fd;        /* + 1 */
    uint32_t slot;       /* + 1 */
    uint32_t generation; /* of the slot */
    uint64_t device, inode;
    struct vgpu_ledger *ledger;   /* for the budgets alone: see layout.h */
    struct vgpu_ledger_head head; /* as it was last read */
    struct vgpu_amount shown[VGPU_DEVICES];
    struct vgpu_amount sums[VGPU_SLOTS]; /* of one device, as they were last read */
    uint64_t reaped_at;
    struct own own[VGPU_DEVICES];
    bool quota_good;
    struct vgpu_quota quota;

    _Atomic uint64_t clock_due;  /* when clock.c looks at its namespace again */
    _Atomic int64_t clock_ahead; /* nanoseconds that this process's clock is ahead of the host's */
    _Atomic bool clock_known;    /* it was read */

    struct lock table; /* guards the items: see items.h */
    struct item *items;
    uint64_t item_room, item_count;
    uint64_t tickets;

    _Atomic uint8_t positions[ORDINALS];       /* + 1, of CUDA's devices in the quota */
    _Atomic uint64_t local_threads[ORDINALS];  /* that can be resident, by position */
    _Atomic uint32_t later;                    /* pieces of linear memory that a stream is yet to free */
    _Atomic uint32_t exported;                 /* pieces of memory that live by a descriptor alone */
    _Atomic int64_t small_room[VGPU_DEVICES];  /* bytes that chunks have left, were they of one piece */
    _Atomic uint32_t gauges;                   /* pools and stores of graphs in the books */
    _Atomic int probe;                         /* see descriptor.c; a descriptor, + 1 */
    _Atomic uint32_t pointers;                 /* of pools, that are exported */
    _Atomic bool greens;                       /* there was a green context */
    _Atomic uint32_t contexts;                 /* in the books */
    _Atomic uint32_t bound;                    /* pieces of memory of sparse arrays */
    _Atomic uint32_t graphs;                   /* instances of graphs with memory of their own */
    _Atomic uint32_t graph_store;              /* who launches a graph with memory, or trims: see graph.c */
    _Atomic uint32_t windows[VGPU_DEVICES];    /* see window.c */
    _Atomic uint32_t primaries[ORDINALS];      /* who makes or ends the primary context: see context.c */
    _Atomic uint32_t handles;                  /* who changes handles or mappings of memory: see vmm.h */
    _Atomic uint32_t libraries;                /* who loads or unloads one: see library.c */
    _Atomic uint32_t graph_turn;               /* who instantiates or destroys a graph: see graph.c */
    struct pacer *_Atomic pacers;              /* see pacer.h */
    struct lock pacing;                        /* guards which contexts have one */
    struct vgpu_budget *budgets[VGPU_DEVICES]; /* as they were found last, and when; guarded by `account` */
    uint64_t budgets_at[VGPU_DEVICES];
    struct vgpu_budget own_budgets[VGPU_DEVICES]; /* where there is no ledger */
    _Atomic uint32_t hold;                        /* see hold.h */
    _Atomic uint32_t inside;                      /* threads in calls that it holds up */
    _Atomic uint64_t hold_until;                  /* CLOCK_MONOTONIC */
    _Atomic uint64_t blocks;                      /* bytes of all; see block.h */
    _Atomic uint32_t mover;                       /* see mover.c */
    _Atomic uint32_t stale; /* waits left after which to look for what was freed in stream order */
};

extern struct process *_Atomic process_area;
__attribute__((cold)) struct process *process_make(void);

/* Zeroes, in a child of fork() too. NULL: there is no such memory. */
void *wiped_memory(size_t size);

/* A turn that is kept while the driver is called, so a thread may be ended in it: the word is that thread's number, and
 * whoever waits takes it from a thread that is gone. `word`: where in the structure it is; 0: there is no turn. */
void turn_take(size_t word);
void turn_drop(size_t word);

#define IN_TURN(word, call)                                                                                 \
    __extension__({                                                                                         \
        turn_take(word);                                                                                    \
        __auto_type done_ = (call);                                                                         \
        turn_drop(word);                                                                                    \
        done_;                                                                                              \
    })

/* NULL: no memory for it. Inline: a launch and its wait ask dozens of times. */
static inline struct process *process(void)
{
    struct process *have = atomic_load_explicit(&process_area, memory_order_acquire);
    return __builtin_expect(have != NULL, 1) ? have : process_make();
}
