/* One clock for all that take part in a test: a discrete simulation of events among real threads and processes.
 *
 * Each thread is a participant with a time of its own, and one of them runs at any moment: the one that is furthest behind.
 * What runs costs fixed amounts of time, by calls and not by the processor's work, so that a test takes the same course
 * each time. Whoever waits says until when; when all wait, time jumps to the earliest of these moments. State lies in a file
 * that all participants map, NVC_SIM_CLOCK; it is changed by whose turn it is, and by who comes or is interrupted in fields
 * of their own. The keeper is the test itself (tests/support/virtual.py): while it has the turn, the world stands still. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define WORLD_NEVER UINT64_MAX
#define WORLD_API __attribute__((visibility("default")))

enum {
    WORLD_PARTICIPANTS = 512,
    WORLD_READ_NS = 50,    /* a look at a clock */
    WORLD_AHEAD_NS = 1000, /* by so much, looks at clocks may run ahead of others */
    WORLD_YIELD_NS = 1000,
    WORLD_WAKE_NS = 2000, /* see `wake`, if the keeper says nothing */
};

enum world_phase { WORLD_VACANT, WORLD_COMING, WORLD_PRESENT, WORLD_LEFT };

struct participant {
    _Atomic uint32_t phase; /* enum world_phase */
    _Atomic uint32_t turn;  /* a futex; 1: it goes on */
    _Atomic int32_t pid;
    _Atomic uint32_t interrupted; /* by a signal, while it waited */
    uint32_t device;  /* a thread that does what a GPU does: that goes on when the process is stopped */
    uint32_t stopped; /* by SIGSTOP */
    uint32_t order;   /* of coming: who goes first at the same time */
    uint32_t looking; /* waits for what descriptors say */
    uint64_t time;
    _Atomic uint64_t due; /* when it goes on */
    uint64_t key;         /* what it waits for; 0: nothing that others could wake it for */
    uint64_t arrival;     /* of waits: who waited first is woken first */
    uint64_t thread;      /* pthread_t, in its process */
    uint32_t woken;
    _Atomic uint32_t orders; /* how many were claimed, in all */
};

struct world {
    uint32_t size; /* of this structure, when it is complete */
    int32_t keeper;
    int32_t cpu;           /* where all run: one at a time, a processor's caches and no wake-up of another */
    _Atomic int32_t dying; /* a process that ends; below zero: nothing is shown of it */
    int32_t leaving_process; /* whose thread `leaving` is */
    _Atomic int32_t leaving;
    uint32_t late;         /* threads begin and end so many us late, in real time: nobody else may see it */
    _Atomic uint32_t used; /* participants beyond it were never there */
    _Atomic uint32_t joined; /* how many came, in all */
    _Atomic uint32_t holder; /* whose turn it is, + 1 */
    _Atomic uint32_t orders; /* how many were claimed, in all */
    int64_t wall;            /* CLOCK_REALTIME is so many nanoseconds ahead of CLOCK_MONOTONIC */
    _Atomic uint64_t now;
    _Atomic uint64_t wake; /* nanoseconds from a wake-up, or a message, until the other one goes on */
    uint64_t next_due;     /* when the first of the others goes on */
    uint64_t arrivals, switches;
    struct participant participants[WORLD_PARTICIPANTS];
};

enum world_why { WORLD_TIMEOUT, WORLD_WOKEN, WORLD_INTERRUPTED };

extern struct world *world; /* NULL: this process is in none */
extern __thread struct participant *world_self;

static inline uint64_t world_later(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

/* A moment so many nanoseconds from now, for who runs. */
static inline uint64_t world_after(uint64_t ns)
{
    return ns > WORLD_NEVER - world_self->time ? WORLD_NEVER : world_self->time + ns;
}

/* Somewhere for a thread to begin at `time`; NULL: there is no more room. */
struct participant *world_claim(uint64_t time);

/* The calling thread is this participant, and goes on when it has the turn. */
void world_enter(struct participant *self);

/* Time passes for the caller, who runs. */
void world_spend(uint64_t ns);
void world_read(void); /* a look at the clock */

/* The caller waits until `due`, or until somebody wakes `key` or, where it is `looking`, does what descriptors show. */
enum world_why world_wait(uint64_t key, uint64_t due, bool looking);

void world_wake(uint64_t key, uint32_t count);
void world_show(void);  /* descriptors may say something else than before */
void world_delay(void); /* in real time, by `late` */

void world_leave(void);                         /* the calling thread ends */
void world_leave_all(void);                     /* its process ends */
void world_leave_killed(void);                  /* its process kills itself */
void world_forget(int32_t process);             /* which is known to have ended */
void world_kill(int32_t process);               /* which was killed, and ends */
void world_stop(int32_t process, bool stopped); /* but not what it has on a GPU; or it goes on */

/* What others are built from: the next one goes on; the caller waits, in real time, until it has the turn. */
void world_hand_on(void);
void world_await_turn(struct participant *self);
struct world *world_map(const char *path, int flags); /* NULL: errno says why */

/* A call of the system, which is not `syscall` of this library. */
long world_call(long number, ...);

/* Called by the simulated driver at each call of a program. */
WORLD_API void sim_clock_spend(uint64_t ns);
