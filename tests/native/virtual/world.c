#include "world.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { DEATH_MS = 10000, PIDFD_OPEN = 434, END_NS = 50000, ENDS = 100000 };

struct world *world;
__thread struct participant *world_self;

long world_call(long number, ...)
{
    static long (*real)(long, ...);
    va_list list;
    long words[6];
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        words[i] = va_arg(list, long);
    va_end(list);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "syscall");
    return real(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

struct participant *world_claim(uint64_t time)
{
    for (uint32_t i = 0; i < WORLD_PARTICIPANTS; i++) {
        struct participant *one = &world->participants[i];
        uint32_t vacant = WORLD_VACANT, used = atomic_load(&world->used);
        if (!atomic_compare_exchange_strong(&one->phase, &vacant, WORLD_COMING))
            continue;
        one->turn = 0;
        one->pid = getpid();
        one->interrupted = one->looking = one->woken = one->device = one->stopped = 0;
        one->order = atomic_fetch_add(&world->orders, 1) + 1;
        one->key = one->arrival = one->thread = 0;
        one->time = time;
        one->due = time;
        while (used <= i && !atomic_compare_exchange_weak(&world->used, &used, i + 1))
            ;
        atomic_store(&one->phase, WORLD_PRESENT);
        /* The keeper may wait for this. It lets time pass at once, so the participant has to be there by now. */
        atomic_fetch_add(&world->joined, 1);
        world_call(SYS_futex, &world->joined, FUTEX_WAKE, 1, NULL, NULL, 0);
        if (world_self && time < world->next_due)
            world->next_due = time;
        return one;
    }
    return NULL;
}

static uint64_t due_of(const struct participant *one)
{
    uint64_t due = atomic_load(&one->due);
    uint64_t at_once = world_later(one->time, atomic_load(&world->now));
    if (one->stopped)
        return WORLD_NEVER;
    return atomic_load(&one->interrupted) && at_once < due ? at_once : due;
}

/* Whoever is furthest behind goes on. */
void world_hand_on(void)
{
    struct participant *best = NULL;
    uint64_t first = WORLD_NEVER, second = WORLD_NEVER;
    uint32_t used = atomic_load(&world->used);
    for (uint32_t i = 0; i < used; i++) {
        struct participant *one = &world->participants[i];
        if (atomic_load(&one->phase) != WORLD_PRESENT)
            continue;
        uint64_t due = due_of(one);
        if (!best || due < first || (due == first && one->order < best->order)) {
            second = first;
            first = due;
            best = one;
        } else if (due < second) {
            second = due;
        }
    }
    if (first == WORLD_NEVER) { /* the keeper is gone */
        atomic_store(&world->holder, 0);
        return;
    }
    best->time = world_later(best->time, first);
    atomic_store(&world->now, world_later(atomic_load(&world->now), best->time));
    world->next_due = second;
    world->switches += best != world_self;
    atomic_store(&world->holder, (uint32_t)(best - world->participants) + 1);
    atomic_store(&best->turn, 1);
    if (best != world_self)
        world_call(SYS_futex, &best->turn, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* In real time: what a process holds is gone when its end can be seen. */
static void await_death(int32_t process)
{
    struct pollfd wait = {.fd = (int)world_call(PIDFD_OPEN, process, 0), .events = POLLIN};
    struct timespec most = {.tv_sec = DEATH_MS / 1000};
    if (wait.fd < 0)
        return;
    while (world_call(SYS_ppoll, &wait, 1, &most, NULL, 0) < 0 && errno == EINTR)
        ;
    world_call(SYS_close, wait.fd);
}

/* In real time: what a thread had of the allocator, and its stack, are for others. A second look comes soon. */
static void await_end(int32_t process, int32_t thread)
{
    struct timespec soon = {.tv_nsec = END_NS};
    for (int i = 0; i < ENDS && world_call(SYS_tgkill, process, thread, 0) == 0; i++)
        world_call(SYS_nanosleep, &soon, NULL);
}

void world_delay(void)
{
    struct timespec late = {.tv_nsec = (long)world->late * 1000};
    if (late.tv_nsec)
        world_call(SYS_nanosleep, &late, NULL);
}

void world_await_turn(struct participant *self)
{
    struct timespec second = {.tv_sec = 1};
    while (!atomic_exchange(&self->turn, 0)) {
        long result = world_call(SYS_futex, &self->turn, FUTEX_WAIT, 0, &second, NULL, 0);
        if (result != 0 && errno == EINTR && !self->key)
            atomic_store(&self->interrupted, 1);
        if (result != 0 && errno == ETIMEDOUT && world_call(SYS_kill, world->keeper, 0) != 0 &&
            errno == ESRCH)
            world_call(SYS_exit_group, 99); /* the test is gone */
    }
    int32_t leaving = atomic_exchange(&world->leaving, 0), dying = atomic_exchange(&world->dying, 0);
    if (leaving)
        await_end(world->leaving_process, leaving);
    if (dying) {
        await_death(abs(dying));
        world_forget(abs(dying));
        if (dying > 0)
            world_show();
    }
}

void world_enter(struct participant *self)
{
    int before = errno;
    world_self = self;
    world_await_turn(self);
    errno = before;
}

static void go_round(void)
{
    int before = errno;
    world_hand_on();
    world_await_turn(world_self);
    errno = before;
}

void world_spend(uint64_t ns)
{
    world_self->time += ns;
    if (world_self->time <= world->next_due)
        return;
    world_self->due = world_self->time;
    go_round();
}

void world_read(void)
{
    world_self->time += WORLD_READ_NS;
    if (world_self->time > WORLD_AHEAD_NS && world_self->time - WORLD_AHEAD_NS > world->next_due)
        world_spend(0);
}

enum world_why world_wait(uint64_t key, uint64_t due, bool looking)
{
    struct participant *self = world_self;
    self->key = key;
    self->looking = looking;
    self->woken = 0;
    self->arrival = ++world->arrivals;
    atomic_store(&self->interrupted, 0);
    atomic_store(&self->due, world_later(due, self->time));
    go_round();
    self->key = 0;
    self->looking = 0;
    if (self->woken)
        return WORLD_WOKEN;
    return atomic_exchange(&self->interrupted, 0) ? WORLD_INTERRUPTED : WORLD_TIMEOUT;
}

static void rouse(struct participant *one)
{
    uint64_t due = world_later(one->time, world_self->time + world->wake);
    one->woken = 1;
    if (due < one->due)
        one->due = due;
    if (one->due < world->next_due)
        world->next_due = one->due;
}

void world_wake(uint64_t key, uint32_t count)
{
    while (count--) {
        struct participant *first = NULL;
        for (uint32_t i = 0; i < atomic_load(&world->used); i++) {
            struct participant *one = &world->participants[i];
            if (one->phase == WORLD_PRESENT && one->key == key && !one->woken &&
                (!first || one->arrival < first->arrival))
                first = one;
        }
        if (!first)
            return;
        rouse(first);
    }
}

void world_show(void)
{
    for (uint32_t i = 0; i < atomic_load(&world->used); i++) {
        struct participant *one = &world->participants[i];
        if (one->phase == WORLD_PRESENT && one->looking && !one->woken && one != world_self)
            rouse(one);
    }
}

void world_leave(void)
{
    struct participant *self = world_self;
    world_self = NULL;
    world->leaving_process = getpid();
    atomic_store(&world->leaving, (int32_t)world_call(SYS_gettid));
    atomic_store(&self->phase, WORLD_VACANT);
    world_hand_on();
}

static void leave_all(int32_t dying)
{
    int32_t own = getpid();
    world_self = NULL;
    for (uint32_t i = 0; i < atomic_load(&world->used); i++)
        if (world->participants[i].pid == own && world->participants[i].phase == WORLD_PRESENT)
            atomic_store(&world->participants[i].phase, WORLD_LEFT);
    atomic_store(&world->dying, dying);
    world_hand_on();
}

void world_leave_all(void)
{
    leave_all(getpid());
}

void world_leave_killed(void)
{
    leave_all(-getpid());
}

void world_kill(int32_t process)
{
    await_death(process);
    world_forget(process);
    world_show();
}

void world_stop(int32_t process, bool stopped)
{
    for (uint32_t i = 0; i < atomic_load(&world->used); i++) {
        struct participant *one = &world->participants[i];
        if (one->pid != process || one->device)
            continue;
        one->stopped = stopped;
        one->due = world_later(one->due, world_self->time); /* it is no earlier when it goes on */
    }
    world_self->due = world_self->time;
    go_round();
}

void world_forget(int32_t process)
{
    for (uint32_t i = 0; i < atomic_load(&world->used); i++)
        if (world->participants[i].pid == process && world->participants[i].phase != WORLD_VACANT) {
            world->participants[i].pid = 0;
            atomic_store(&world->participants[i].phase, WORLD_VACANT);
        }
}

void sim_clock_spend(uint64_t ns)
{
    if (world_self)
        world_spend(ns);
}

struct world *world_map(const char *path, int flags)
{
    int fd = (int)world_call(SYS_openat, AT_FDCWD, path, flags | O_RDWR | O_CLOEXEC | O_NOCTTY, 0666);
    if (fd < 0)
        return NULL;
    void *found = flags && world_call(SYS_ftruncate, fd, sizeof(struct world)) != 0
                      ? MAP_FAILED
                      : mmap(NULL, sizeof(struct world), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    world_call(SYS_close, fd);
    return found == MAP_FAILED ? NULL : found;
}

static void stay_on(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    sched_setaffinity(0, sizeof(set), &set);
}

/* A process begins. The program that a participant executes goes on as this participant. */
static void __attribute__((constructor)) come(void)
{
    const char *path = getenv("NVC_SIM_CLOCK");
    int32_t own = getpid();
    world = path ? world_map(path, 0) : NULL;
    if (!world)
        return;
    uint32_t holder = atomic_load(&world->holder);
    struct participant *self = holder ? &world->participants[holder - 1] : NULL;
    if (self && self->pid == own) {
        for (uint32_t i = 0; i < atomic_load(&world->used); i++)
            if (&world->participants[i] != self && world->participants[i].pid == own)
                atomic_store(&world->participants[i].phase, WORLD_VACANT);
        world_self = self;
        return;
    }
    self = world_claim(atomic_load(&world->now));
    if (!self)
        world_call(SYS_exit_group, 98);
    stay_on(world->cpu);
    world_enter(self);
}
