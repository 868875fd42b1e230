/* A launch is let through when the slice has credit and few enough of this process's launches are under way. Time alone
 * brings credit. A kernel may wait on the device for one that is launched after it: so what is held back for long while
 * nothing ends is let through all the same, and paid for. */
#include "credit.h"

#include "ledger.h"
#include "lease.h"

enum {
    STUCK_NS = 50000000,
    LASTS_NS = 5000000,      /* who has waited goes on for so long, while there is credit */
    TURN_NS = 10000000,      /* after which who has the turn is taken for dead */
    TURNS_BITS = 12,         /* so many turns are passed over at once, at most */
    STALLED_NS = 40000000,   /* work that may wait on a device that stalls, by what launches took lately, */
    STALLED = 8,             /* and so many launches of unknown length */
    TURN_WAIT_NS = 25000000, /* that it waits for credit at most, to have half a turn */
    SPREAD = 1024,
    SPARE_NS = 150000 /* for so long, what is twice that is not looked at again */
};

/* Whether the queue allows this launch to take credit. Others may be dead or stopped: nobody waits for them for long. */
static bool has_turn(struct launch *launch, int64_t credit, struct wait *wait)
{
    struct budget *budget = &launch->meter->budget;
    if (!launch->queued)
        return !budget_is_queued(budget);
    if (budget_is_turn(budget, launch->ticket))
        return true;
    uint32_t served = SHARED_READ(budget->shared->served);
    if (served != wait->served || credit <= 0) {
        wait->dead = served == wait->served ? wait->dead : 0;
        wait->served = served;
        wait->turn_since = launch->now;
    } else if (launch->now - wait->turn_since > TURN_NS) {
        /* Where many are dead, or none of them ever was, each look passes over twice as many. */
        wait->served = served + (UINT32_C(1) << wait->dead);
        wait->dead += wait->dead < TURNS_BITS;
        budget_leave(budget, wait->served - 1);
        wait->turn_since = launch->now;
    }
    return false;
}

static bool has_turns(const struct meter *meter, uint64_t now)
{
    return lease_took_turns(meter->position, now, BUDGET_TURNS);
}

static int64_t refill(struct meter *meter, uint64_t now)
{
    uint64_t saved = has_turns(meter, now) ? BUDGET_TURNS : BUDGET_PERIOD;
    budget_open(&meter->budget, meter->position, now);
    budget_settle(&meter->budget, meter->cores, lease_is_watched());
    return budget_refill(&meter->budget, meter->cores, now, saved);
}

/* The lock is held. Who waited for credit begins when no other process of the slice has work under way: the device changes
 * from one to the other at a cost, and how much is under way is for all of them. One of them may wait for this launch. */
static bool has_place(const struct launch *launch, const struct wait *wait)
{
    const struct meter *meter = launch->meter;
    return meter->under_way || !meter->others || meter->others < (launch->queued ? 1 : meter_most(meter)) ||
           (wait->held_since && launch->now - wait->held_since > STUCK_NS);
}

/* The lock is held. */
static enum verdict_of_gate take_credit(struct launch *launch, struct wait *wait)
{
    struct meter *meter = launch->meter;
    struct budget *budget = &meter->budget;
    budget_open(budget, meter->position, launch->now);
    meter->others = launch->paced ? 0 : budget_others(budget, launch->now);
    bool place = has_place(launch, wait),
         goes_on = !launch->queued && meter->turn_until - launch->now <= LASTS_NS;
    if (place && !launch->queued && (goes_on || !budget_is_queued(budget)) &&
        launch->now - meter->weighed < SPARE_NS && SHARED_READ(budget->shared->credit) > 2 * SPARE_NS)
        return OPEN;
    meter->weighed = launch->now;
    int64_t credit = refill(meter, launch->now);
    /* Who had to wait goes on with some credit, so that what can overlap does, and is not chopped. */
    int64_t some = BUDGET_PERIOD / 400 * (int64_t)meter->cores;
    /* nvcd has saved enough for half a turn: asked sooner it would give many short ones, which take time of others. */
    int64_t most = TURN_WAIT_NS / 100 * (int64_t)meter->cores, half = (int64_t)lease_half(meter->position);
    if (half > some && has_turns(meter, launch->now))
        some = half < most ? half : most;
    if (launch->paced)
        some = some / 2 + some * (int64_t)launch->spread / SPREAD;
    int64_t enough = launch->queued ? some : 1;
    if ((goes_on || has_turn(launch, credit, wait)) && credit >= enough && place) {
        if (launch->queued) {
            budget_leave(budget, launch->ticket);
            meter->turn_until = launch->now + LASTS_NS;
        }
        launch->queued = false;
        return OPEN;
    }
    if (credit <= 0)
        meter->turn_until = 0;
    if (!launch->queued) {
        launch->ticket = budget_queue(budget);
        launch->queued = true;
        launch->spread = (uint32_t)(launch->now * UINT64_C(0x9e3779b97f4a7c15) >> 32) % SPREAD;
        wait->turn_since = launch->now;
        wait->served = SHARED_READ(budget->shared->served);
    }
    int64_t missing = some - credit;
    wait->sleep = missing > 0 ? (uint64_t)missing / meter->cores * 100 : 0;
    if (!budget_is_turn(budget, launch->ticket))
        return WAIT_TURN;
    return credit >= some ? WAIT_PLACE : WAIT_CREDIT;
}

/* The lock is held. Whether no launch of another thread has waited for longer; of a thread that has ended nothing is heard. */
static bool is_oldest(struct meter *meter, const struct wait *wait, uint64_t now)
{
    if (meter->oldest && meter->oldest < wait->held_since && now - meter->oldest_heard < 2 * STUCK_NS)
        return false;
    meter->oldest = wait->held_since;
    meter->oldest_heard = now;
    return true;
}

/* The lock is held. Nothing has ended for long, so that what runs may wait for this launch, whatever that waits for. Not
 * before the credit that was missing at first would have come, had nothing run. One at a time, in the order in which they
 * came: who always launches more would leave nothing to the one that what runs waits for. */
static bool is_stuck(struct meter *meter, struct wait *wait, uint64_t now)
{
    uint64_t from = wait->held_since > meter->progress ? wait->held_since : meter->progress;
    if (!meter->under_way || !wait->held_since || !is_oldest(meter, wait, now) || now <= from)
        return false;
    if (wait->still_since != from) {
        int64_t credit = meter->cores ? refill(meter, now) : 0;
        wait->owed = credit < 0 ? (uint64_t)-credit : 0;
        wait->still_since = from;
    }
    uint64_t due = meter->cores ? wait->owed / meter->cores * 100 : 0;
    /* The device has as many processes to work for, one after the other. */
    return now - from > (due > STUCK_NS ? due : STUCK_NS) * (meter->others + 1);
}

/* The lock is held. Nothing runs, and what is under way may wait for this launch. */
static bool may_join_stalled(const struct meter *meter)
{
    return atomic_load(&meter->stalled) && meter->under_way < STALLED &&
           meter->pace * (meter->under_way + 1) <= STALLED_NS;
}

enum verdict_of_gate credit_begin(struct launch *launch, uint32_t cores, struct wait *wait)
{
    struct meter *meter = launch->meter;
    enum verdict_of_gate verdict = OPEN;
    lock_take(&meter->lock);
    meter->cores = cores;
    if (meter->under_way >= meter_room(meter) && !may_join_stalled(meter))
        verdict = WAIT_WORK;
    else if (cores)
        verdict = take_credit(launch, wait);
    if (verdict != OPEN && is_stuck(meter, wait, launch->now)) {
        meter->progress = launch->now;
        verdict = OPEN;
    }
    if (verdict == OPEN && !meter_begin(launch))
        verdict = WAIT_MEMORY;
    if (verdict == OPEN && meter->oldest == wait->held_since)
        meter->oldest = 0;
    lock_drop(&meter->lock);
    return verdict;
}

bool credit_is_stuck(int position, uint32_t cores, struct wait *wait, uint64_t now)
{
    struct meter *meter = meter_of(position);
    if (!meter)
        return false;
    lock_take(&meter->lock);
    meter->cores = cores;
    bool stuck = is_stuck(meter, wait, now);
    if (atomic_load(&meter->stalled)) /* nothing ends by itself */
        stuck |= !cores || refill(meter, now) > 0;
    lock_drop(&meter->lock);
    return stuck;
}

enum verdict_of_gate credit_weigh(struct launch *launch, uint32_t cores, struct wait *wait)
{
    struct meter *meter = launch->meter;
    lock_take(&meter->lock);
    meter->cores = cores;
    enum verdict_of_gate verdict = take_credit(launch, wait);
    if (verdict != OPEN && is_stuck(meter, wait, launch->now))
        verdict = OPEN;
    lock_drop(&meter->lock);
    return verdict;
}
