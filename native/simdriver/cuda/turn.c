/* One process at a time has the turn on a partition; the others queue by setting a bit. Whoever passes it on picks
 * the next in a round. A holder that died or stopped is found by those who wait. */
#include "engine.h"
#include "rm.h"

#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { STALE_NS = 100000000 };

static struct sim_partition *partition_of(const struct device *device)
{
    return &driver()->state->partitions[device->partition];
}

static long futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *timeout)
{
    return syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

static void want(struct sim_partition *partition, uint32_t slot, bool wanted)
{
    uint64_t bit = UINT64_C(1) << slot % 64;
    if (wanted)
        atomic_fetch_or(&partition->wanted[slot / 64], bit);
    else
        atomic_fetch_and(&partition->wanted[slot / 64], ~bit);
}

bool turn_is_mine(struct device *device)
{
    return driver()->slot < SIM_SLOTS && atomic_load(&partition_of(device)->turn) == driver()->slot + 1;
}

uint64_t turn_free_at(struct device *device)
{
    return atomic_load(&partition_of(device)->free_at);
}

void turn_report(struct device *device)
{
    atomic_store(&partition_of(device)->free_at, device->engine.clock);
}

/* A holder that reports nothing for long, or is dead, has lost its turn. */
static bool is_abandoned(struct sim_partition *partition, uint32_t turn)
{
    struct driver *in = driver();
    uint64_t now = sim_now(), reported = atomic_load(&partition->free_at);
    if (turn > SIM_SLOTS || (now > reported && now - reported > STALE_NS))
        return true;
    return !sim_slot_lives(in->state, in->fd, turn - 1);
}

bool turn_take(struct device *device)
{
    struct sim_partition *partition = partition_of(device);
    uint32_t slot = driver()->slot, turn = atomic_load(&partition->turn);
    if (slot >= SIM_SLOTS)
        return false;
    bool taken = turn == slot + 1;
    if (!taken && (turn == 0 || is_abandoned(partition, turn)))
        taken = atomic_compare_exchange_strong(&partition->turn, &turn, slot + 1);
    want(partition, slot, !taken);
    device->engine.queued = !taken;
    return taken;
}

bool turn_hold(struct device *device, uint64_t now)
{
    struct engine *engine = &device->engine;
    if (engine->holding)
        return true;
    if (together_is_used()) {
        together_begin(device);
        engine->holding = true;
        engine->wants = false;
        return true;
    }
    if (!gate_is_open(device, now, &engine->opens)) {
        engine->shut = true;
        engine->shut_at = now;
        engine->wants = false;
        if (engine->queued)
            turn_withdraw(device);
        return false;
    }
    engine->holding = turn_take(device);
    engine->wants = !engine->holding;
    if (engine->holding) {
        uint64_t free_at = turn_free_at(device), from = free_at < now ? free_at : now;
        from =
            from > engine->shut_at ? from : engine->shut_at; /* when its server is gone, it says no more */
        engine->clock = gate_opens(device, engine->clock > from ? engine->clock : from);
        engine->slice_start = engine->held_since = engine->clock;
    }
    return engine->holding;
}

/* A number of the environment, looked for once. The lock is held. */
static uint64_t number(const char *name, uint64_t otherwise, uint64_t *found)
{
    if (*found == UINT64_MAX) {
        const char *text = getenv(name);
        *found = text ? strtoull(text, NULL, 10) : otherwise;
    }
    return *found;
}

/* Nanoseconds; 0: changes take no time. */
static uint64_t switch_ns(void)
{
    static uint64_t found = UINT64_MAX;
    return number("NVC_SIM_SWITCH_NS", 0, &found);
}

uint64_t turn_length(const struct device *device)
{
    static uint64_t found = UINT64_MAX;
    uint64_t length = gate_length(device);
    return length ? length : number("NVC_SIM_TIMESLICE_NS", TIMESLICE_NS, &found);
}

bool turn_takes_time(void)
{
    return !together_is_used() && switch_ns() != 0;
}

uint64_t turn_change(struct device *device)
{
    uint64_t mine = driver()->slot + 1;
    if (together_is_used())
        return 0;
    return atomic_exchange(&partition_of(device)->last, mine) != mine ? switch_ns() : 0;
}

bool turn_is_needed(const struct op *op)
{
    if (op->kind == OP_KERNEL || op->kind == OP_COPY || op->kind == OP_CHOOSE || together_is_used() ||
        !switch_ns())
        return false;
    return op->kind != OP_WAIT || op->event->done >= op->generation;
}

void turn_withdraw(struct device *device)
{
    want(partition_of(device), driver()->slot, false);
    device->engine.queued = false;
    if (turn_is_mine(device)) /* it was passed to us just before */
        turn_pass(device, false);
}

/* The next slot in the round that wants the turn, + 1; 0: none. */
static uint32_t next_wanted(struct sim_partition *partition, uint32_t slot)
{
    for (uint32_t step = 1; step <= SIM_SLOTS; step++) {
        uint32_t at = (slot + step) % SIM_SLOTS;
        uint64_t bits = atomic_load(&partition->wanted[at / 64]) >> at % 64;
        if (bits & 1)
            return at == slot ? 0 : at + 1;
        if (!bits)
            step += 63 - at % 64; /* nobody in the rest of this word */
    }
    return 0;
}

bool turn_is_wanted(struct device *device)
{
    return next_wanted(partition_of(device), driver()->slot) != 0;
}

void turn_nudge(struct device *device)
{
    futex(&partition_of(device)->turn, FUTEX_WAKE, INT32_MAX, NULL);
}

void turn_pass(struct device *device, bool still_wanted)
{
    struct sim_partition *partition = partition_of(device);
    uint32_t mine = driver()->slot + 1;
    turn_report(device);
    want(partition, driver()->slot, still_wanted);
    device->engine.queued = still_wanted;
    atomic_compare_exchange_strong(&partition->turn, &mine, next_wanted(partition, driver()->slot));
    turn_nudge(device);
}

void turn_wait(struct device *device, uint64_t ns)
{
    struct sim_partition *partition = partition_of(device);
    struct timespec timeout = {.tv_nsec = (long)ns};
    uint32_t turn = atomic_load(&partition->turn);
    if (device->engine.shut || (turn != 0 && turn != driver()->slot + 1))
        futex(&partition->turn, FUTEX_WAIT, turn, &timeout);
}
