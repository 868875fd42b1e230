/* The resource manager of a simulated driver: a file that answers ioctls as /dev/nvidiactl does.
 *
 * A FUSE server, for tests: `simrm ROOT` mounts on ROOT/proc/driver/nvidia/sim/rm and serves `nvidiactl` until its standard
 * input ends. Each open by path is an inode of its own, so that each mapping has pages of its own. What engines must know
 * of groups and channels is in the shared state; the rest is here. `faults` in the same directory switches faults on. */
#pragma once

#include "group.h"
#include "rm_abi.h"

#include <pthread.h>
#include <sys/types.h>

/* The GPU's timer is no clock of the host: whoever mixes them up shall notice. */
#define RM_TIMER_AHEAD_NS UINT64_C(1000000000000000000)

enum { RM_FILE_SIZE = 16 << 20, RM_RULES = 16, RM_DRAIN_NS = 33000000 };

/* What a mapping shows; header and records of an event buffer. */
struct memory {
    uint32_t references; /* objects and inodes */
    uint64_t size;
    uint8_t *bytes;
};

/* An inode: one open by path. */
struct node {
    struct node *next;
    uint64_t number, lookups;
    bool faults;           /* it is the file of that name */
    struct memory *memory; /* that RM_MAP_MEMORY gave it */
};

struct buffer {
    struct memory *header, *records;
    uint32_t gpu, get, put, count;
    uint64_t dropped;
    bool enabled, bound, news;
};

struct object {
    struct object *next;
    uint32_t handle, parent, class, gpu;
    uint32_t group;        /* of a group that computes, in the state; else SIM_GROUPS */
    struct object *in;     /* of a channel: its group, or NULL */
    bool stopped;          /* a channel */
    uint32_t timeslice;    /* microseconds, of a group */
    struct memory *memory; /* of class CLASS_DEVICELESS */
    struct buffer *buffer; /* of class CLASS_BUFFER */
};

struct client {
    struct client *next;
    uint32_t handle;
    uint64_t file; /* the open file that it was made with */
    pid_t pid;
    uint32_t next_handle;
    struct object *objects;
};

struct rule {
    uint32_t command; /* of RM_CONTROL, class of RM_ALLOC; 0: every call */
    uint32_t status;
};

struct server {
    struct sim_root root;
    struct sim_state *state;
    int state_fd;
    const struct world *world; /* NULL: time is real */
    struct fuse_session *session;
    pthread_mutex_t lock;     /* of all that follows; not held while the kernel or the clock is waited for */
    pthread_mutex_t draining; /* taken before it */
    struct node *nodes;
    uint64_t numbers; /* of inodes and open files */
    struct client *clients;
    uint64_t read;            /* regions of the state */
    _Atomic uint64_t drained; /* when */
    uint16_t sequence[SIM_MAX_GPUS];
    struct rule rules[RM_RULES];
    uint32_t rule_count;
    uint32_t drop;
};

/* Who calls, and with what. */
struct call {
    struct server *server;
    pid_t thread;
    uid_t user;
    uint64_t file;
    bool flush;     /* the log has to be brought up to date before the answer, */
    bool publish;   /* or headers shown as they are */
    uint64_t until; /* the clock's time before which it does not come */
};

/* clock.c */
int clock_open(struct server *server, const char *path); /* 0, or an errno value */
uint64_t clock_now(const struct server *server);         /* as sim_now */
void clock_wait(const struct server *server, uint64_t until);

/* caller.c: the memory, descriptors and process of who calls */
bool caller_read(const struct call *call, uint64_t from, void *to, size_t size);
bool caller_write(const struct call *call, uint64_t to, const void *from, size_t size);
pid_t caller_process(const struct call *call);                  /* 0: it is gone */
uint64_t caller_inode(const struct call *call, int descriptor); /* 0: none */

/* objects.c; all with the lock */
struct client *client_find(struct server *server, uint32_t handle);
struct client *client_of(const struct call *call, uint32_t handle); /* NULL: not of this open file */
struct object *object_find(const struct client *client, uint32_t handle);
uint32_t object_alloc(struct call *call, struct rm_alloc *alloc);
uint32_t object_free(struct call *call, const struct rm_free *wanted);
void clients_free(struct server *server, uint64_t file); /* UINT64_MAX: all */
void memory_drop(struct memory *memory);

/* groups.c */
uint32_t group_begin(struct call *call, struct object *group, const struct client *client, uint32_t engine);
void group_end(struct server *server, struct object *group);
void group_count(struct server *server, const struct client *client, struct object *group, uint64_t time);
uint32_t channels_disable(struct call *call, struct rm_disable *list);
uint32_t timeslice_set(struct server *server, struct object *group, uint64_t microseconds);

/* control.c */
uint32_t control(struct call *call, const struct rm_control *wanted);
uint32_t memory_map(struct call *call, struct rm_map *map);

/* log.c */
void log_update(struct server *server, bool drain); /* without the lock */
void *log_main(void *server);

/* faults.c */
bool faults_set(struct server *server, const char *text,
                size_t size); /* false: nothing that we understand */
uint32_t faults_status(const struct server *server, uint32_t command);

/* ioctl.c: `data` in and out. Returns 0, or an errno value. */
int ioctl_answer(struct call *call, unsigned int request, void *data, size_t size);

/* main.c */
struct node *node_find(struct server *server, uint64_t number);
void node_invalidate(struct server *server, uint64_t number); /* without the lock */
