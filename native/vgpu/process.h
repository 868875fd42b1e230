/* What this process knows, in memory that fork() wipes: a child starts with no slot, no locks held and no accounts, as
 * the driver, which does not work in it, has given it nothing. */
#ifndef NVC_VGPU_PROCESS_H
#define NVC_VGPU_PROCESS_H

#include "layout.h"
#include "system.h"

enum { ORDINALS = 64 };

struct own {
    uint64_t committed, tentative;
};

struct item;

struct process {
    struct lock account; /* guards all down to `table`; never held while the driver is called */
    int ledger_fd;       /* + 1 */
    int quota_fd;        /* + 1 */
    uint32_t slot;       /* + 1 */
    uint64_t device, inode;
    struct vgpu_ledger *ledger;
    uint64_t reaped_at;
    struct own own[VGPU_DEVICES];
    bool quota_good;
    struct vgpu_quota quota;

    struct lock table; /* guards the items: see items.h */
    struct item *items;
    uint64_t item_room, item_count;
    uint64_t tickets;

    _Atomic uint8_t positions[ORDINALS];      /* + 1, of CUDA's devices in the quota */
    _Atomic uint64_t local_threads[ORDINALS]; /* that can be resident, by position */
    _Atomic uint32_t gauges;                  /* pools and graph memory that are watched */
    _Atomic uint32_t imports;                 /* pieces of memory of unknown exporters */
    _Atomic uint32_t graphs;                  /* instances of graphs with memory of their own */
    _Atomic uint32_t stale; /* waits left after which to look for what was freed in stream order */
};

/* NULL: no memory for it. */
struct process *process(void);

#endif
