/* What tests/support/virtual.py calls: the keeper's part. */
#include "world.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

WORLD_API int keeper_create(const char *path, uint64_t start, int64_t wall)
{
    world = world_map(path, O_CREAT | O_EXCL);
    if (!world)
        return errno;
    world->keeper = getpid();
    world->cpu = sched_getcpu();
    world->wall = wall;
    world->now = start;
    world->wake = WORLD_WAKE_NS;
    world->next_due = WORLD_NEVER;
    world->size = sizeof(*world);
    world_self = world_claim(start);
    world->holder = 1;
    world_self->turn = 0;
    return 0;
}

WORLD_API void keeper_end(void)
{
    munmap(world, sizeof(*world));
    world = NULL;
    world_self = NULL;
}

WORLD_API void keeper_wake(uint64_t ns)
{
    world->wake = ns;
}

WORLD_API void keeper_late(uint32_t microseconds)
{
    world->late = microseconds;
}

WORLD_API uint64_t keeper_now(void)
{
    return world_self->time;
}

/* How many came. Waits in real time while these are no more than `before`. */
WORLD_API uint32_t keeper_joined(uint32_t before, long milliseconds)
{
    struct timespec most = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000};
    if (atomic_load(&world->joined) == before)
        world_call(SYS_futex, &world->joined, FUTEX_WAIT, before, &most, NULL, 0);
    return atomic_load(&world->joined);
}

WORLD_API uint64_t keeper_switches(void)
{
    return world->switches;
}

/* The world goes on, until `due` or, if it is `looking`, until something happens at a descriptor. */
WORLD_API void keeper_go(uint64_t due, int looking)
{
    world_show();
    world_self->woken = 0;
    world_self->looking = (uint32_t)looking;
    atomic_store(&world_self->due, due);
    world_hand_on();
}

/* Waits in real time until the keeper has the turn. Returns 1: it has; 0: not yet. */
WORLD_API int keeper_await(long milliseconds)
{
    struct timespec most = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000};
    if (!atomic_load(&world_self->turn))
        world_call(SYS_futex, &world_self->turn, FUTEX_WAIT, 0, &most, NULL, 0);
    if (!atomic_load(&world_self->turn))
        return 0;
    world_await_turn(world_self);
    world_self->looking = 0;
    return 1;
}

/* Whose turn it is; 0: nobody's. */
WORLD_API int32_t keeper_holder(void)
{
    uint32_t holder = atomic_load(&world->holder);
    return holder ? atomic_load(&world->participants[holder - 1].pid) : 0;
}

/* A process has ended. It may have had the turn: then whoever is next goes on. */
WORLD_API void keeper_bury(int32_t process)
{
    bool stuck = keeper_holder() == process;
    world_forget(process);
    if (stuck)
        world_hand_on();
}

WORLD_API uint32_t keeper_used(void)
{
    return atomic_load(&world->used);
}

/* The process of a participant that is not the keeper; 0: there is none. */
WORLD_API int32_t keeper_other(uint32_t number)
{
    const struct participant *one = &world->participants[number];
    return one != world_self && one->phase == WORLD_PRESENT ? one->pid : 0;
}

/* The process that came last and is there. */
WORLD_API int32_t keeper_newest(void)
{
    const struct participant *newest = world_self;
    for (uint32_t i = 0; i < atomic_load(&world->used); i++)
        if (world->participants[i].phase == WORLD_PRESENT && world->participants[i].order > newest->order)
            newest = &world->participants[i];
    return newest->pid;
}
