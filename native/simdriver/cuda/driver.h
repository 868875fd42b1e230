/* What the files of the simulated libcuda share: the process's view of the driver, and its objects.
 *
 * One lock guards everything. An exported function enters with CU_ENTER and leaves with CU_RETURN; all others run
 * with the lock held, but for the effects of operations, which the engine runs without it. */
#pragma once

#include "abi/cuda.h"
#include "ranges.h"
#include "state.h"

#include <pthread.h>
#include <signal.h>
#include <sys/types.h>

enum { MIB = 1 << 20, PAGE = 2 * MIB, MAX_RUNNING = 128, MAX_ARGUMENTS = 4096, QUEUE_DEPTH = 1024 };

enum kind {
    KIND_CONTEXT = 1,
    KIND_STREAM,
    KIND_EVENT,
    KIND_MODULE,
    KIND_LIBRARY,
    KIND_FUNCTION,
    KIND_ARRAY,
    KIND_MIPMAP,
    KIND_POOL,
    KIND_VMM,
    KIND_GRAPH,
    KIND_GRAPH_EXEC,
    KIND_NODE,
    KIND_CONDITION,
    KIND_USER_OBJECT,
    KIND_LINK,
    KIND_VIEW,
    KIND_GREEN,
    KIND_RESOURCE,
};

/* Device memory of this process: one sparse file, mapped whole. Addresses in it are the device pointers. */
struct space {
    int fd; /* -1: not set up yet */
    uint64_t base, size;
    struct ranges free;
};

/* 2 MiB that hold small allocations, as the driver packs them. */
struct chunk {
    struct chunk *next;
    uint64_t address;
    uint32_t used;      /* units */
    uint64_t export_id; /* of all of it, once a handle of a part was given out; 0: charged to this process */
    uint64_t map[64];
};

enum memory_kind {
    MEMORY_DEVICE,
    MEMORY_POOL,
    MEMORY_MAPPED, /* by cuMemMap */
    MEMORY_MANAGED,
    MEMORY_HOST,
    MEMORY_REGISTERED,
    MEMORY_IMPORTED, /* from another process */
    MEMORY_GLOBAL,   /* a variable of a module */
};

/* One allocation, found by any address in it. */
struct memory {
    struct range range; /* as asked for */
    enum memory_kind kind;
    struct device *device;
    struct context *context; /* NULL: belongs to no context */
    uint64_t id;
    uint64_t taken; /* bytes of address space */
    uint64_t charged;
    struct chunk *chunk;
    struct pool *pool;
    struct stream *freed_on; /* freed in stream order, not done yet */
    uint32_t frees_due;      /* operations that are to free it */
    uint64_t use;            /* which of them means the present use */
    struct memory *next_freed;
    struct vmm *vmm;
    uint64_t offset; /* in what is mapped */
    uint64_t export_id;
    uint32_t flags;
    bool resident; /* managed: on the device */
};

struct engine {
    bool started, holding, in_wait;
    bool stepping; /* a thread is at it, though it may have left the lock */
    bool wants;    /* kernels wait for the turn, */
    bool shut;     /* or are stopped */
    bool queued;   /* and other processes know */
    bool late;     /* it looks later than something ends */
    pthread_t thread;
    pthread_cond_t wake;
    uint64_t asleep_until; /* when its thread looks again by itself */
    uint64_t shut_at;      /* they were stopped then */
    uint64_t opens;        /* when they go on, if that is known */
    uint64_t clock;        /* simulated time: kernels are done up to here */
    uint64_t slice_start;  /* of the turn */
    uint64_t held_since;   /* likewise, with what is no kernel */
    uint64_t copies_end;   /* when the copy engine is free */
    uint32_t beside;       /* other clients of MPS whose kernels run, */
    uint32_t seen;         /* and what was counted of their changes then */
    uint32_t load;         /* share of the GPU in use, of 65536 */
    uint32_t running_count;
    struct op *running[MAX_RUNNING];
};

struct device {
    int ordinal;
    const struct sim_gpu *gpu;
    const struct sim_mig *mig; /* NULL: the whole GPU */
    uint32_t partition;
    uint64_t capacity; /* bytes that programs get */
    uint32_t multiprocessors;
    unsigned int primary_flags;
    struct context *primary;
    struct space space;
    struct chunk *chunks;
    struct pool *default_pool, *pool;
    struct stream *streams; /* of all contexts */
    struct engine engine;
    struct pool *graph_pool; /* of memory nodes */
};

struct context {
    struct device *device;
    uint64_t id;
    unsigned int flags;
    unsigned int retained; /* of a primary context */
    bool primary;
    CUresult error; /* sticky: a kernel failed */
    uint64_t charged;
    uint64_t local_charged, local_bytes; /* for local memory: in all, per thread */
    uint64_t heap_charged;
    size_t limits[CU_LIMIT_COUNT];
    int cache_config, shared_config;
    uint64_t peers; /* bit per device whose memory it may access */
    uint32_t rm_device,
        rm_group; /* rm.h: a handle; the group that computes, in the state, SIM_GROUPS: none */
    uint64_t rm_id, rm_served;
    uint64_t sequence;
    uint64_t legacy_time, blocking_time; /* when the last work of the one, of all blocking streams ended */
    struct stream *legacy;
    struct module *modules;
    struct context *next;
};

/* Another handle of the primary context: what is made in it belongs there. */
struct green {
    struct device *device;
};

struct stream {
    struct context *context;
    uint64_t id;
    unsigned int flags;
    int priority;
    uint64_t thread; /* per-thread default stream: of this thread */
    bool dead;       /* destroyed by the program, goes with its last operation */
    struct op *head, *tail;
    uint32_t depth;
    uint64_t time; /* when its last work ended */
    struct capture *capture;
    struct node **frontier; /* of the capture: what the next operation depends on */
    size_t frontier_count;
    struct stream *next; /* of the device */
};

struct event {
    struct context *context;
    unsigned int flags;
    uint32_t references;     /* handle and operations */
    uint64_t recorded, done; /* generations */
    uint32_t awaited;        /* threads that wait for it */
    uint64_t time;
    struct capture *capture; /* last recorded in this capture */
    struct node **captured;
    size_t captured_count;
};

/* What a process does when an operation is due. `shared`: with the lock held. */
typedef void (*effect)(struct op *op);

enum op_kind { OP_NOTHING, OP_KERNEL, OP_COPY, OP_HOST, OP_RECORD, OP_WAIT, OP_FREE, OP_POLL, OP_CHOOSE };
enum op_state { OP_QUEUED, OP_RUNNING, OP_DONE };

/* One operation of a stream, or the pattern of one in a graph. Its data lie behind it. */
struct op {
    enum op_kind kind;
    enum op_state state;
    int node_type;        /* CU_GRAPH_NODE_TYPE_*, when captured */
    struct op *next;      /* in the stream */
    struct op *next_host; /* in the queue of functions of the program */
    struct stream *stream;
    uint64_t sequence, submitted;
    uint64_t duration;  /* ns of work */
    uint64_t remaining; /* of a running kernel */
    uint64_t finish;    /* of a running copy */
    uint32_t share;     /* of the GPU, of 65536 */
    bool awaited;       /* threads wait for its end */
    effect run;
    bool (*ready)(struct op *op); /* OP_POLL, and kernels that spin */
    struct event *event;
    uint64_t generation;
    struct memory *memory;
    struct graph_exec *exec; /* last operation of a graph launch */
    size_t size;             /* bytes behind this structure */
    max_align_t data[];
};

static inline void *op_data(const struct op *op)
{
    return (char *)(uintptr_t)op + offsetof(struct op, data);
}

struct driver {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* some work is done */
    uint32_t waiting;       /* threads that wait for that */
    pthread_cond_t host_wake;
    bool host_started;
    struct op *host_first; /* functions of the program that are due */
    bool ready;
    struct sim_root root;
    struct sim_state *state;
    int fd;
    dev_t state_device;
    ino_t state_inode;
    uint32_t slot; /* SIM_SLOTS: none */
    uint64_t token;
    uint32_t inside;  /* threads in calls */
    uint32_t pending; /* operations of all streams */
    uint64_t next_id;
    uint32_t device_count;
    struct device devices[SIM_MAX_GPUS];
    struct context *contexts;
    struct ranges memory;
    struct ranges reserved; /* by cuMemAddressReserve */
    uint64_t *handles;      /* hash table of pointer | kind << 56 */
    size_t handle_slots, handle_count;
    int mps;              /* its server's socket + 1; 0: none */
    uint32_t mps_percent; /* of the multiprocessors */
    int rm_fd;            /* of the resource manager, while there are contexts in it */
    uint32_t rm_client, rm_contexts, rm_handles;
    CUresult mps_error; /* the server is gone, or another client has ended everybody */
};

/* The one of this process; its lock must be held for all but CU_ENTER. */
struct driver *driver(void);

/* How late a step is that a test names, once it is: milliseconds; -1: none names it. See checkpoint.c. */
int step_delay(const struct driver *in, const char *step);

CUresult api_enter(void);
CUresult api_attach(void); /* likewise, before cuInit: only the shared state is there */
void api_leave(void);
uint64_t thread_number(void); /* from 1, unique in the process */
CUresult cuDriverGetVersion(int *version);

#define CU_ENTER()                                                                                          \
    do {                                                                                                    \
        CUresult entered_ = api_enter();                                                                    \
        if (entered_ != CUDA_SUCCESS)                                                                       \
            return entered_;                                                                                \
    } while (0)

#define CU_RETURN(expression)                                                                               \
    do {                                                                                                    \
        CUresult left_ = (expression);                                                                      \
        api_leave();                                                                                        \
        return left_;                                                                                       \
    } while (0)

/* The whole of an exported function. */
#define CU_CALL(expression)                                                                                 \
    do {                                                                                                    \
        CU_ENTER();                                                                                         \
        CU_RETURN(expression);                                                                              \
    } while (0)

/* Likewise, of one that does not wait while the process is suspended: as with driver 580, it faults. */
#define CU_CALL_RESIDENT(expression)                                                                        \
    do {                                                                                                    \
        if (locked_is_away())                                                                               \
            raise(SIGSEGV);                                                                                 \
        CU_CALL(expression);                                                                                \
    } while (0)

/* An exported function that is one value; one that is not to be called while the process is suspended; and such with their
 * twins for programs with a default stream for each thread: there, OWN() says which stream a program means. */
#define CU_EXPORT(name, parameters, value)                                                                  \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        CU_CALL(value);                                                                                     \
    }
#define CU_EXPORT_RESIDENT(name, parameters, value)                                                         \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        CU_CALL_RESIDENT(value);                                                                            \
    }
#define CU_TWIN(is_per_thread, name, parameters, call)                                                      \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        enum { of_thread = is_per_thread };                                                                 \
        call;                                                                                               \
    }
#define CU_TWINS(suffix, name, parameters, value)                                                           \
    CU_TWIN(false, name, parameters, CU_CALL(value))                                                        \
    CU_TWIN(true, name##suffix, parameters, CU_CALL(value))
#define CU_TWINS_RESIDENT(suffix, name, parameters, value)                                                  \
    CU_TWIN(false, name, parameters, CU_CALL_RESIDENT(value))                                               \
    CU_TWIN(true, name##suffix, parameters, CU_CALL_RESIDENT(value))
#define OWN_DEFAULT (of_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY)
#define OWN(stream) (of_thread && !(stream) ? CU_STREAM_PER_THREAD : (stream))

#define CU_TRY(expression)                                                                                  \
    do {                                                                                                    \
        CUresult tried_ = (expression);                                                                     \
        if (tried_ != CUDA_SUCCESS)                                                                         \
            return tried_;                                                                                  \
    } while (0)

#define CU_REQUIRE(condition, otherwise)                                                                    \
    do {                                                                                                    \
        if (!(condition))                                                                                   \
            return (otherwise);                                                                             \
    } while (0)

#define CU_ARGUMENT(condition) CU_REQUIRE(condition, CUDA_ERROR_INVALID_VALUE)

/* Declares `name`, the current context, in a function with the lock held. */
#define CU_CONTEXT(name)                                                                                    \
    struct context *name = context_current();                                                               \
    CU_REQUIRE(name, CUDA_ERROR_INVALID_CONTEXT);                                                           \
    CU_REQUIRE(name->error == CUDA_SUCCESS, name->error)

/* handles.c: every pointer that a program holds */
void *handle_new(enum kind kind, size_t size);      /* zeroed; NULL: out of memory */
bool handle_remember(void *object, enum kind kind); /* false: out of memory */
void handle_forget(void *object);                   /* it lives on for our own use */
void handle_free(void *object);
bool handle_is(const void *object, enum kind kind);
void handle_each(enum kind kind, void (*visit)(void *object, void *data), void *data);

/* visible.c: CUDA_VISIBLE_DEVICES and the root's nodes decide on driver()->devices */
void devices_find(struct driver *to);
struct device *device_at(CUdevice ordinal); /* NULL: none */

/* ledger.c: what is taken from a partition, in the shared state */
CUresult ledger_charge(struct device *device, uint64_t bytes);
void ledger_refund(struct device *device, uint64_t bytes);
void ledger_managed(struct device *device, int64_t bytes); /* residency; never fails */
void ledger_busy(struct device *device, uint64_t ns);
/* Bytes that this process may have of the device, and that are left of them; `leaf`: of sim_own_limit. */
void ledger_room(struct device *device, bool leaf, uint64_t *total, uint64_t *room);
CUresult ledger_export(struct device *device, uint64_t bytes, uint64_t *id); /* from charged to shared */
bool ledger_lock(const struct driver *in); /* while others' entries are looked at, too */
void ledger_unlock(const struct driver *in);
bool ledger_has_slot(const struct driver *in); /* whether our slot is ours still */
CUresult ledger_hold(uint64_t id);
void ledger_drop(uint64_t id);

/* locked.c: what cuCheckpoint* ask of this process */
void locked_enter(struct driver *in); /* waits while the process is locked */
void locked_leave(struct driver *in);
bool locked_is_away(void);       /* its memory is off the devices */
void locked_pending(int change); /* operations begin or end */

/* context.c */
struct context *context_current(void);
CUresult context_create(struct device *device, unsigned int flags, struct context **out);
void context_destroy(struct context *context);
void context_fail(struct context *context, CUresult error);
CUresult context_local(struct context *context, uint64_t bytes_per_thread);

/* context_settings.c */
CUresult primary_retain(struct context **out, struct device *device);
CUresult primary_release(struct device *device);
