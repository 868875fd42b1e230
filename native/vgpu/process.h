/* What this process knows, in memory that fork() wipes: a child starts with no slot, no locks held and no accounts, as
 * the driver, which does not work in it, has given it nothing. */
#ifndef NVC_VGPU_PROCESS_H
#define NVC_VGPU_PROCESS_H

#include "layout.h"
#include "system.h"

enum { ORDINALS = 64, GAUGES = 128 };

/* See gauge.h. */
struct watched {
    uint64_t key;
    uint8_t kind, position;
};

struct own {
    uint64_t committed, tentative;
};

struct item;
struct meter;

/* See lease.c. */
struct lease {
    _Atomic uint32_t state, waiters;
    struct lock changing; /* a grant comes, or one is given back */
    _Atomic bool stuck;   /* nvcd has been told that what runs waits for another turn */
    bool stalled;         /* nvcd has been told that what runs waits for the host */
    uint32_t round;
    uint64_t granted; /* CLOCK_MONOTONIC, nanoseconds */
    uint64_t length;  /* nanoseconds */
    uint64_t charged; /* at that time */
    uint64_t left;    /* when it was given back before its work had ended; 0: it had */
    uint64_t tail;    /* how long that went on, which nvcd is yet to be told */
    uint64_t told;    /* when nvcd heard of the end of the turn before; 0: it was no hand-over */
    _Atomic uint64_t
        asked;       /* when the device was last wanted, or what runs was found to wait for another turn */
    uint32_t doubts; /* turns in which the work's end is waited for: it was guessed wrong */
    _Atomic uint32_t steps;    /* since it was granted */
    _Atomic bool fresh;        /* a thread waited for it, and has not launched yet */
    _Atomic uint64_t handover; /* from the end of another one's turn to a launch in ours; 0: not measured */
    _Atomic uint64_t turned;   /* when one with an end was last given back */
    uint64_t spun; /* since when it is looked without a pause whether its work has ended; 0: it is not */
    uint8_t uuid[16];
};

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

    struct lease leases[VGPU_DEVICES];
    _Atomic int channel;            /* descriptor of the connection with nvcd, + 1 */
    uint64_t channel_inode;         /* of its socket */
    _Atomic uint64_t channel_retry; /* no attempt to connect before then */
    _Atomic uint64_t channel_heard; /* when nvcd last said something */
    _Atomic bool channel_doubted;   /* it had fallen silent, and has said nothing since */
    _Atomic bool ending;            /* the program calls exit(3) */
    _Atomic uint32_t watching;      /* see watch.c */
    _Atomic uint64_t clock_due;     /* when clock.c looks at its namespace again */
    _Atomic int64_t clock_ahead;    /* nanoseconds that this process's clock is ahead of the host's */
    _Atomic bool clock_known;       /* it was read */

    struct lock table; /* guards the items: see items.h */
    struct item *items;
    uint64_t item_room, item_count;
    uint64_t tickets;
    struct watched watched[GAUGES];

    _Atomic uint8_t positions[ORDINALS];      /* + 1, of CUDA's devices in the quota */
    _Atomic uint64_t local_threads[ORDINALS]; /* that can be resident, by position */
    _Atomic uint32_t later;                   /* pieces of linear memory that a stream is yet to free */
    _Atomic uint32_t exported;                /* pieces of memory that live by a descriptor alone */
    _Atomic int64_t small_room[VGPU_DEVICES]; /* bytes that chunks have left, were they of one piece */
    _Atomic uint32_t gauges;                  /* of `watched`, in use */
    _Atomic int probe;                        /* see descriptor.c; a descriptor, + 1 */
    _Atomic uint32_t pointers;                /* of pools, that are exported */
    _Atomic uint32_t views;                   /* contexts that were made of green ones */
    _Atomic uint32_t contexts;                /* in the books */
    _Atomic uint32_t bound;                   /* pieces of memory of sparse arrays */
    _Atomic uint32_t graphs;                  /* instances of graphs with memory of their own */
    uint32_t
        graph_holds[VGPU_DEVICES]; /* launches that count on what the store of graphs has: see graph.c */
    uint32_t graph_trims[VGPU_DEVICES];     /* calls that take from that store; both under `table` */
    _Atomic uint32_t windows[VGPU_DEVICES]; /* see window.c */
    _Atomic uint32_t primaries[ORDINALS];   /* who makes or ends the primary context: see context.c */
    _Atomic uint32_t handles;               /* who changes handles or mappings of memory: see vmm.h */
    _Atomic uint32_t graph_turn;            /* who instantiates or destroys a graph: see graph.c */
    struct meter *_Atomic meters[VGPU_DEVICES];
    _Atomic uint64_t metered;          /* a bit for each position that has a meter */
    _Atomic uint32_t captures;         /* streams that capture, at least so many */
    _Atomic uint32_t capture_changing; /* calls that begin or end a capture now: see capture.h */
    _Atomic uint64_t capture_changes;  /* those that have returned */
    _Atomic uint32_t streams_ended; /* streams and contexts that were destroyed: handles may mean others */
    _Atomic uint32_t stale;         /* waits left after which to look for what was freed in stream order */
};

extern struct process *_Atomic process_area;
__attribute__((cold)) struct process *process_make(void);

/* A turn that is kept while the driver is called, so a thread may be ended in it: the word is that thread's number, and
 * whoever waits takes it from a thread that is gone. `word`: where in the structure it is. */
void turn_take(size_t word);
void turn_drop(size_t word);

/* NULL: no memory for it. Inline: a launch and its wait ask dozens of times. */
static inline struct process *process(void)
{
    struct process *have = atomic_load_explicit(&process_area, memory_order_acquire);
    return __builtin_expect(have != NULL, 1) ? have : process_make();
}

#endif
