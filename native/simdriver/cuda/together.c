/* Clients of an MPS server run kernels at the same time. What each is slowed down by was measured on an H200, with decode
 * loops: two do 1.13 times as many steps as one alone, four and more 1.46. Clients of other servers count as well. */
#include "engine.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ALONE = 1000, MOST = 4 };

/* Of all, by how many run, in 1/1000 of one alone. */
static const uint64_t done_by[MOST + 1] = {ALONE, ALONE, 1130, 1300, 1460};

static struct sim_partition *partition_of(const struct device *device)
{
    return &driver()->state->partitions[device->partition];
}

static uint64_t speed(const struct engine *engine)
{
    uint32_t all = engine->beside + 1;
    return done_by[all < MOST ? all : MOST] / all;
}

bool together_is_used(void)
{
    return driver()->mps && driver()->slot < SIM_SLOTS;
}

void together_nudge(struct device *device)
{
    struct sim_partition *partition = partition_of(device);
    atomic_fetch_add(&partition->changes, 1);
    syscall(SYS_futex, &partition->changes, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void together_begin(struct device *device)
{
    uint32_t slot = driver()->slot;
    atomic_fetch_or(&partition_of(device)->together[slot / 64], UINT64_C(1) << slot % 64);
    together_nudge(device);
}

void together_end(struct device *device)
{
    uint32_t slot = driver()->slot;
    atomic_fetch_and(&partition_of(device)->together[slot / 64], ~(UINT64_C(1) << slot % 64));
    together_nudge(device);
}

/* Others that live: who was killed is found by this. */
static uint32_t count_others(struct sim_partition *partition)
{
    struct driver *in = driver();
    uint32_t count = 0, used = atomic_load(&in->state->slots_used);
    for (uint32_t slot = 0; slot < used && slot < SIM_SLOTS; slot++) {
        uint64_t bits = atomic_load(&partition->together[slot / 64]);
        if (slot != in->slot && bits >> slot % 64 & 1)
            count += sim_slot_lives(in->state, in->fd, slot);
    }
    return count;
}

bool together_look(struct device *device)
{
    struct engine *engine = &device->engine;
    struct sim_partition *partition = partition_of(device);
    uint32_t changes = atomic_load(&partition->changes), before = engine->beside;
    if (!together_is_used() || changes == engine->seen)
        return false;
    engine->seen = changes;
    engine->beside = count_others(partition);
    return engine->beside != before;
}

void together_wait(struct device *device, uint64_t ns)
{
    struct timespec timeout = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    struct sim_partition *partition = partition_of(device);
    syscall(SYS_futex, &partition->changes, FUTEX_WAIT, device->engine.seen, &timeout, NULL, 0);
}

uint64_t together_takes(const struct engine *engine, uint64_t work)
{
    return engine->beside ? (work * ALONE + speed(engine) - 1) / speed(engine) : work;
}

uint64_t together_does(const struct engine *engine, uint64_t ns)
{
    return engine->beside ? ns * speed(engine) / ALONE : ns;
}
