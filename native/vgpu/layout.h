/* What the host and the processes of a slice share: the quota, which the host writes and the container reads, and the
 * ledger, in which the container's processes keep their accounts. One source of truth: the Python side is tested
 * against this file. Fixed-width fields only, one a line, little-endian, no padding.
 *
 * Beside the shim LIBDIR/libcuda.so.1 lie LIBDIR/nvc/real-libcuda.so.1, LIBDIR/nvc/quota (bound
 * read-only) and LIBDIR/nvc/ledger/ledger (in a small tmpfs of the container's own). */
#pragma once

#include <stdint.h>

#define VGPU_QUOTA_FILE "nvc/quota"
#define VGPU_LEDGER_FILE "nvc/ledger/ledger"
#define VGPU_MPS_DIRECTORY "nvc/mps"

#define VGPU_QUOTA_MAGIC 0x41544f555143564eULL  /* "NVCQUOTA" */
#define VGPU_LEDGER_MAGIC 0x524744454c43564eULL /* "NVCLEDGR" */
#define VGPU_LAYOUT_VERSION 4
#define VGPU_DEVICES 64  /* most GPUs and MIG devices of a container */
#define VGPU_SLOTS 512   /* most processes of a container that use a GPU at one time */
#define VGPU_SHARES 1024 /* most allocations of a container that are exported by an IPC handle at one time */
#define VGPU_NO_LIMIT 0xffffffffffffffffULL
/* Under these two the shim knows no caps. */
#define VGPU_POLICY_NATIVE 5u
#define VGPU_POLICY_CONCURRENT 6u /* a cap is a part of the multiprocessors, which MPS keeps */

/* Bits of `flags` of a device in the quota. */
#define VGPU_DEVICE_PAUSED 1u /* launches wait until it is gone, unless their time is kept from outside */
#define VGPU_DEVICE_DENIED 2u /* memory too: nothing more is given, what is there stays */

/* How slices of different weights are kept to them under VGPU_POLICY_CONCURRENT: the lowest byte is the percentage of the
 * time for which the slice may have work on the device, 100: all of it. The rest is until when that holds, on the host's
 * CLOCK_MONOTONIC: where nvcd has ended, nobody is held back for long. Before then, the shim measures the slice's time. */
#define VGPU_PACE_PERCENT UINT64_C(0xff)

/* A device keeps its position for as long as the container lives: the ledger counts by that position. */
struct vgpu_quota_device {
    uint8_t uuid[16];      /* of the GPU, or of the MIG device: its 32 hexadecimal digits in their order */
    uint64_t memory_limit; /* bytes for all processes of the container together, or VGPU_NO_LIMIT */
    uint64_t context_overhead; /* bytes that a context takes when it is made, as calibrated */
    uint64_t module_overhead;  /* bytes that a process's first module takes on top of that */
    uint64_t correction;       /* bytes that the host sees taken beyond the ledger; 0 when nobody looks */
    uint32_t cores;            /* percent of the device's time; 0: no cap */
    uint32_t weight;           /* among the containers of the device */
    uint32_t policy;           /* a row of nvc/model/slices/policy.py */
    uint32_t flags;
    uint64_t pace; /* written by nvcd in one piece, without a change of `sequence`; 0: it measures nothing */
    /* Written by nvcd like `pace`, again and again. While the first lies ahead on the host's CLOCK_MONOTONIC, nvcd moves
     * others away for memory that the driver has no room for. The second is the last `asked` that it has answered. */
    uint64_t room_until;
    uint64_t answered;
    uint64_t reserved;
    uint32_t period_us; /* of a cap, for nvcd; 0: 100,000 */
    uint32_t unused;
    /* Nanoseconds of the host's CLOCK_MONOTONIC. While that lies ahead, nvcd keeps time by the driver, and the shim holds
     * nothing back and measures nothing. Written by nvcd like `pace`, again and again; 0 where it does not. */
    uint64_t kept_until;
    uint64_t had;    /* nanoseconds of the device in all, by the driver's log; written like `kept_until` */
    uint64_t waited; /* nanoseconds in which nvcd has stopped it; likewise */
};

/* Bits of `flags` of the quota, which nvcd alone writes, in one piece and without a change of `sequence`. */
#define VGPU_QUOTA_SUSPENDED 1u /* the processes' memory leaves their devices, has left, or comes back */
#define VGPU_QUOTA_SWAPS 2u     /* the processes move their memory themselves when asked: see swap/mover.h */

/* The lowest byte of `swap` in the quota, which nvcd writes likewise; the rest is a number, so that it differs each time. */
#define VGPU_SWAP_OUT 1u
#define VGPU_SWAP_IN 2u
#define VGPU_SWAP_FREE 3u /* give memory of the host back that is kept for the next time */

/* Readers take a copy that was made while `sequence` was even and did not change. */
struct vgpu_quota {
    uint64_t magic;
    uint32_t version;
    uint32_t size;     /* of this structure */
    uint64_t sequence; /* odd while the host writes; raised by two in all by each change */
    uint32_t device_count;
    uint32_t flags;
    uint64_t swap; /* what the processes are asked to do with their memory */
    uint64_t reserved[3];
    struct vgpu_quota_device devices[VGPU_DEVICES];
};

/* What counts against the limit is the sum of `taken` and `inherited` over all slots. The owner writes the first three,
 * others, with the lock of the shares, the last: so they are written apart. */
struct vgpu_amount {
    uint64_t changes;   /* raised with each change, so that a reader sees whether its sum is of one moment */
    uint64_t taken;     /* bytes that the driver has given, or is being asked for */
    uint64_t tentative; /* of these, what it is being asked for */
    uint64_t inherited; /* bytes of dead exporters that this process still maps */
};

/* A slot belongs to the process that holds an open file description lock on the byte of the file whose offset is the
 * slot's index. Once nobody holds it, its amounts are void, and whoever sees that may zero them. */
struct vgpu_slot {
    uint32_t pid; /* in the container's pid namespace; 0: free */
    uint32_t generation;
    uint64_t claimed;    /* nanoseconds since boot */
    uint8_t name[16];    /* of the program, 0-terminated */
    uint64_t swapped;    /* the last `swap` of the quota that was answered; 0: it moves nothing itself */
    uint32_t swap_error; /* of CUDA, of that; 0: none */
    uint32_t swap_away;  /* 1: what it can move is in the host's memory */
    uint64_t movable;    /* bytes */
    uint64_t staged;     /* bytes of the host's memory that it keeps for them */
};

/* An allocation that was exported by cuIpcGetMemHandle: counted for its owner, later for an importer that outlives it.
 * Changed under a lock on the byte at offset VGPU_SLOTS. */
struct vgpu_share {
    uint8_t handle[64];
    uint64_t bytes;
    uint32_t device;
    uint32_t owner; /* slot + 1; 0: free */
    uint32_t owner_generation;
    uint32_t inherited; /* 1: the bytes are in the owner's `inherited`, not in `taken` */
    uint64_t importers[VGPU_SLOTS / 64];
};

/* The time of one device, for all processes of the container together, while the shim measures it: for a cap, or a pace.
 * Times are of the host's CLOCK_MONOTONIC, nanoseconds. */
struct vgpu_budget {
    int64_t credit;    /* of GPU time that may still be used; below zero: debt */
    uint64_t refilled; /* when the credit was last refilled; 0: never */
    uint64_t charged;  /* GPU time in all */
    uint64_t waited;   /* that launches were held back, by a cap, a pace or a pause, in all */
    uint64_t launches; /* of kernels and graphs */
    uint64_t refused;  /* requests for memory that did not fit, whoever keeps time */
    uint64_t asked;    /* raised by who waits for room, for what is `tentative`: see resident.h */
    uint64_t reserved;
};

struct vgpu_ledger_head {
    uint64_t magic;
    uint32_t version;
    uint32_t size;        /* of this structure */
    uint32_t slot_count;  /* VGPU_SLOTS */
    uint32_t high_water;  /* no slot at or above this index was ever used */
    uint64_t transfers;   /* raised in the middle of each move from one slot to another */
    uint64_t shares_used; /* no share at or above this index was ever used */
    uint64_t reserved[3];
};

/* A tenant may cut its ledger short at any time, which a mapping does not outlive: all but budgets is read and
 * written by calls of the system, in aligned words. */
struct vgpu_ledger {
    struct vgpu_ledger_head head;
    struct vgpu_slot slots[VGPU_SLOTS];
    struct vgpu_amount amounts[VGPU_DEVICES][VGPU_SLOTS];
    struct vgpu_share shares[VGPU_SHARES];
    struct vgpu_budget budgets[VGPU_DEVICES];
};

_Static_assert(sizeof(struct vgpu_quota_device) == 128, "layout");
_Static_assert(sizeof(struct vgpu_quota) == 64 + 128 * VGPU_DEVICES, "layout");
_Static_assert(sizeof(struct vgpu_amount) == 32, "layout");
_Static_assert(sizeof(struct vgpu_slot) == 64, "layout");
_Static_assert(sizeof(struct vgpu_ledger_head) == 64, "layout");
_Static_assert(sizeof(struct vgpu_share) == 152, "layout");
_Static_assert(sizeof(struct vgpu_budget) == 64, "layout");
_Static_assert(sizeof(struct vgpu_ledger) ==
                   64 + (64 + 32 * VGPU_DEVICES) * VGPU_SLOTS + 152 * VGPU_SHARES + 64 * VGPU_DEVICES,
               "layout");
