/* The state that all processes of a simulated driver share: proc/driver/nvidia/sim/state, mapped by each.
 *
 * Fixed-width, little-endian as the machine, versioned; nvc/testing/sim/state.py reads and creates the same layout.
 * No aggregate is stored: usage is the sum over the slots of living processes. A slot lives as long as the OFD
 * lock on its byte, which the kernel drops with the last descriptor of the process, however it dies. */
#pragma once

#include "root.h"

#include <stdatomic.h>

#define SIM_STATE_PATH "/proc/driver/nvidia/sim/state"
#define SIM_STATE_MAGIC UINT64_C(0x31306d697363766e) /* "nvcsim01" */

enum {
    SIM_SLOTS = 1024,
    SIM_USES = 32, /* partitions that one process can use */
    SIM_PARTITIONS = SIM_MAX_GPUS * (1 + SIM_MAX_MIG),
    SIM_HISTORY = 16,
    SIM_EXPORTS = 512,
    SIM_LIMITS = 256,
    SIM_LIMIT_PATH = 472,
    SIM_STATE_VERSION = 4,
    SIM_HISTORY_NS = 100000000, /* one element of a history */
    SIM_GROUPS = 1024,          /* that compute, of all processes */
    SIM_CHANGES = 16,
    SIM_REGIONS = 16384,
    SIM_STOP_NS = 500000, /* from the call until it holds, as on an H100 */
    SIM_START_NS = 300000,
};

/* Bytes of the state file that stand for locks; nothing is stored under that meaning. */
enum {
    SIM_LOCK_LEDGER = 0,    /* held while memory is charged */
    SIM_LOCK_SLOTS = 0x1000 /* + 2 * slot: OFD, alive; + 1: POSIX, whose owner the kernel names by pid */
};

/* One partition (a GPU, or a MIG device) in use by one process. */
struct sim_use {
    _Atomic uint32_t partition; /* + 1; 0: free */
    uint32_t reserved;
    _Atomic uint64_t bytes;   /* taken for the process alone */
    _Atomic uint64_t managed; /* resident managed memory: in the device's figure, never in the process's */
    _Atomic uint64_t busy_ns; /* GPU time consumed */
    _Atomic uint64_t second;  /* CLOCK_BOOTTIME in seconds, of what follows */
    _Atomic uint64_t this_second_ns, last_second_ns;
    _Atomic uint64_t saved; /* `bytes` while the process is checkpointed */
};

/* What cuCheckpoint* have made of a process: CUprocessState, one that is to be locked, and one that is checkpointed and
 * that nothing brings back. */
enum { SIM_PROCESS_LOCKING = 0x100, SIM_PROCESS_LOST };

struct sim_slot {
    _Atomic uint64_t token;   /* 0: free; else drawn at random by the owner */
    _Atomic uint32_t pid;     /* in the owner's pid namespace */
    _Atomic uint32_t process; /* CUprocessState, or SIM_PROCESS_LOCKING; a futex that its threads wait on */
    _Atomic uint64_t cgroup;  /* inode of the one that was charged last; 0: not known */
    _Atomic uint32_t inside;  /* threads in calls of the driver */
    _Atomic uint32_t pending; /* operations that have not ended */
    struct sim_use uses[SIM_USES];
};

/* Memory that several processes may hold: charged to the first holder, alive while one of them is. */
struct sim_export {
    _Atomic uint64_t id; /* 0: free */
    _Atomic uint64_t bytes;
    _Atomic uint32_t partition;
    _Atomic uint32_t owner; /* slot that it is shown under */
    _Atomic uint64_t holders[SIM_SLOTS / 64];
};

/* What a cgroup may take of a partition; see limit.h. Written under the ledger's lock. */
struct sim_limit {
    _Atomic uint32_t partition; /* + 1; 0: free */
    uint32_t inside;            /* where in `path` that begins which /proc/PID/cgroup shows */
    _Atomic uint64_t cgroup;    /* inode of its directory, which is its number in the kernel */
    _Atomic uint64_t soft, hard;
    uint64_t space; /* inode of the cgroup namespace that `path` is of */
    char path[SIM_LIMIT_PATH];
};

struct sim_partition {
    _Atomic uint32_t turn;    /* slot + 1 whose kernels run; 0: idle */
    _Atomic uint32_t changes; /* of `together` */
    _Atomic uint64_t free_at; /* CLOCK_BOOTTIME ns at which the last holder's work ended */
    _Atomic uint64_t busy_ns; /* since the state was made */
    _Atomic uint64_t wanted[SIM_SLOTS / 64];
    _Atomic uint64_t together[SIM_SLOTS / 64]; /* clients of MPS whose kernels run */
    struct {
        _Atomic uint64_t period; /* CLOCK_BOOTTIME / SIM_HISTORY_NS */
        _Atomic uint64_t busy_ns;
    } history[SIM_HISTORY];
    _Atomic uint64_t last; /* slot + 1 whose kernels ran last in a turn */
};

/* A channel group that computes, made by a process's context. The resource manager (rm/) writes it, the engines obey;
 * see group.h. */
struct sim_group {
    _Atomic uint64_t id;   /* client << 32 | handle; 0: free */
    _Atomic uint32_t pid;  /* the owner's, as the resource manager sees it */
    _Atomic uint32_t slot; /* + 1; 0: not known */
    _Atomic uint32_t partition;
    _Atomic uint32_t timeslice;         /* microseconds */
    _Atomic uint32_t channels, stopped; /* how many there are, and are stopped */
    uint32_t reserved;
    _Atomic uint32_t changes; /* from running to stopped and back, in all: the last is the element before */
    _Atomic uint64_t changed_at[SIM_CHANGES]; /* CLOCK_BOOTTIME ns, << 1 | stopped from then on */
};

/* A context has a partition from when to when: one line of the switch log, that engines write. */
struct sim_region {
    _Atomic uint64_t number; /* + 1, when it is complete */
    _Atomic uint64_t time;   /* CLOCK_BOOTTIME ns */
    _Atomic uint32_t partition;
    _Atomic uint32_t begins; /* else it ends */
    _Atomic uint32_t pid;
    _Atomic uint32_t group;
};

struct sim_rm {
    _Atomic uint64_t served; /* drawn at random by the server that runs; 0: none does */
    _Atomic uint64_t regions_written;
    _Atomic uint32_t active[SIM_PARTITIONS]; /* group + 1 that has it; 0: none that is known */
    struct sim_group groups[SIM_GROUPS];
    struct sim_region regions[SIM_REGIONS];
};

struct sim_state {
    uint64_t magic;
    uint32_t version;
    uint32_t size;                 /* bytes of the file */
    uint64_t pid_namespace;        /* inode of the namespace in which pids are the host's */
    _Atomic uint32_t slots_used;   /* high-water mark */
    _Atomic uint32_t exports_used; /* likewise */
    _Atomic uint32_t limits_used;  /* likewise */
    uint32_t reserved[7];
    struct sim_partition partitions[SIM_PARTITIONS];
    struct sim_export exports[SIM_EXPORTS];
    struct sim_slot slots[SIM_SLOTS];
    struct sim_limit limits[SIM_LIMITS];
    struct sim_rm rm;
};

_Static_assert(sizeof(struct sim_use) == 64, "state layout");
_Static_assert(sizeof(struct sim_slot) == 32 + 64 * SIM_USES, "state layout");
_Static_assert(sizeof(struct sim_export) == 24 + SIM_SLOTS / 8, "state layout");
_Static_assert(sizeof(struct sim_limit) == 512, "state layout");
_Static_assert(sizeof(struct sim_partition) == 32 + SIM_SLOTS / 4 + 16 * SIM_HISTORY, "state layout");
_Static_assert(sizeof(struct sim_group) == 40 + 8 * SIM_CHANGES, "state layout");
_Static_assert(sizeof(struct sim_region) == 32, "state layout");
_Static_assert(offsetof(struct sim_rm, groups) == 16 + 4 * SIM_PARTITIONS, "state layout");
_Static_assert(offsetof(struct sim_state, partitions) == 64, "state layout");

/* The number of a partition: GPU `gpu` of the description, or its MIG device `mig` (from 0; -1: the GPU). */
static inline uint32_t sim_partition_of(uint32_t gpu, int mig)
{
    return gpu * (1 + SIM_MAX_MIG) + (uint32_t)(mig + 1);
}

/* Maps the state of `root`. `*fd` stays open for locks: closing any descriptor of the file would drop the POSIX
 * locks of the whole process. Returns NULL with one line in `message`. */
struct sim_state *sim_state_map(const struct sim_root *root, bool writable, int *fd, char *message,
                                size_t size);

/* Whether the process of this slot, or a child that inherited its descriptors, lives. */
bool sim_slot_lives(const struct sim_state *state, int fd, uint32_t slot);

/* The owner's pid as this process sees it, 0 where it cannot. */
uint32_t sim_slot_pid(const struct sim_state *state, int fd, uint32_t slot);

/* Bytes of `partition` used by a slot, exports shown under it included. */
uint64_t sim_slot_bytes(const struct sim_state *state, uint32_t slot, uint32_t partition);

/* Bytes of `partition` used by all living processes. `self`: the slot that is locked through `fd` itself, which the
 * kernel does not tell us about, or SIM_SLOTS. */
uint64_t sim_partition_bytes(const struct sim_state *state, int fd, uint32_t self, uint32_t partition);

/* Share of the last second, in percent, in which kernels ran. */
uint32_t sim_partition_utilization(const struct sim_state *state, uint32_t partition);

/* The same for what one process ran. */
uint32_t sim_use_utilization(const struct sim_use *use);

/* CLOCK_BOOTTIME in nanoseconds: processes in time namespaces that shift CLOCK_MONOTONIC use one GPU. */
uint64_t sim_now(void);
