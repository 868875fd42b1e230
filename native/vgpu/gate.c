/* The gate opens on wall time alone: credit comes with it, and who is held back because work of this process is
 * unfinished is let through after a while. So kernels that wait for others to be launched get what they wait for. */
#include "gate.h"

#include "budget.h"
#include "ledger.h"
#include "lease.h"

#include <errno.h>
#include <string.h>

#define MS UINT64_C(1000000)

enum {
    AHEAD_NS = 5000000, /* what may be launched and unfinished, as estimated */
    AHEAD_LAUNCHES = 512,
    READ_NS = 200000,  /* between two looks at marks */
    STEP_NS = 5000000, /* the longest sleep */
    LOOK_NS = 500000,  /* while marks are to be read */
    SHORT_NS = 20000,  /* before the first look */
    STUCK_NS = 50000000,
    TURN_NS = 10000000, /* after which who has the turn is taken for dead */
    TURNS_BITS = 12,    /* so many turns are passed over at once, at most */
};

enum verdict_of_gate { OPEN, WAIT_WORK, WAIT_CREDIT, WAIT_TURN };

struct wait {
    uint64_t held_since; /* for whatever reason */
    uint64_t since, work_since, turn_since;
    uint32_t served; /* when the turn was looked at */
    uint32_t dead;   /* whose turn passed while nothing happened, one after the other */
    uint64_t sleep;
};

/* An unknown key may have 1, 2, 4, then 8 launches outstanding. */
static void price(struct passage *passage, struct meter *meter)
{
    const struct estimate *estimate = estimate_find(&meter->estimates, passage->key);
    uint32_t samples = estimate->samples;
    passage->sum = passage->paid = estimate->mean;
    passage->unknown = samples < ESTIMATE_KNOWN;
    /* What overlapped lately will again. */
    if (meter->lately_summed && meter->lately_used < meter->lately_summed)
        passage->paid =
            (uint64_t)((double)passage->sum * (double)meter->lately_used / (double)meter->lately_summed);
    if (passage->paid < passage->sum / 16)
        passage->paid = passage->sum / 16;
    passage->weight = passage->paid;
    if (passage->unknown) {
        uint64_t least = AHEAD_NS >> (samples < 3 ? samples : 3);
        passage->weight = passage->weight > least ? passage->weight : least;
    }
}

/* Whether the queue allows this launch to take credit. Others may be dead or stopped: nobody waits for them for long. */
static bool has_turn(struct passage *passage, struct vgpu_budget *budget, int64_t credit, struct wait *wait,
                     uint64_t now)
{
    if (!passage->queued)
        return !budget_is_queued(budget);
    if (budget_is_turn(budget, passage->ticket))
        return true;
    uint32_t served = SHARED_READ(budget->served);
    if (served != wait->served || credit <= 0) {
        wait->dead = served == wait->served ? wait->dead : 0;
        wait->served = served;
        wait->turn_since = now;
    } else if (now - wait->turn_since > TURN_NS) {
        /* Where many are dead, or none of them ever was, each look passes over twice as many. */
        wait->served = served + (UINT32_C(1) << wait->dead);
        wait->dead += wait->dead < TURNS_BITS;
        budget_leave(budget, wait->served - 1);
        wait->turn_since = now;
    }
    return false;
}

/* The lock is held. */
static enum verdict_of_gate take_credit(struct passage *passage, struct wait *wait, uint64_t now)
{
    struct meter *meter = passage->meter;
    if (meter->allowance > 0 && !passage->queued && now - meter->allowance_at < BUDGET_PERIOD)
        return OPEN;
    struct vgpu_budget *budget = budget_open(meter->position, &meter->own);
    if (meter->allowance > 0 && now - meter->allowance_at >= BUDGET_PERIOD) {
        budget_pay(budget, meter->cores, -meter->allowance);
        meter->allowance = 0;
    }
    int64_t saved = lease_takes_turns(meter->position) ? BUDGET_TURNS : BUDGET_PERIOD;
    int64_t credit = budget_refill(budget, meter->cores, now, saved);
    meter->forfeited = SHARED_READ(budget->cover.forfeited);
    if (has_turn(passage, budget, credit, wait, now)) {
        /* Who had to wait goes on with some credit, so that what can overlap does, and is not chopped. */
        int64_t least = passage->queued ? BUDGET_PERIOD / 400 * (int64_t)meter->cores : 0;
        if (meter->allowance <= 0 && credit >= least) {
            meter->allowance += budget_draw(budget, BUDGET_DRAW);
            meter->allowance_at = now;
        }
        if (meter->allowance > 0) {
            if (passage->queued)
                budget_leave(budget, passage->ticket);
            passage->queued = false;
            return OPEN;
        }
    }
    if (!passage->queued) {
        passage->ticket = budget_queue(budget);
        passage->queued = true;
        wait->turn_since = now;
        wait->served = SHARED_READ(budget->served);
    }
    int64_t missing = BUDGET_PERIOD / 400 * (int64_t)meter->cores - credit;
    wait->sleep = missing > 0 ? (uint64_t)missing / meter->cores * 100 : 0;
    return budget_is_turn(budget, passage->ticket) ? WAIT_CREDIT : WAIT_TURN;
}

/* The lock is held. A launch beyond what the allowance has makes debt, which all processes see at once. */
static void pay(struct passage *passage)
{
    struct meter *meter = passage->meter;
    meter->ahead += passage->weight;
    meter->outstanding++;
    if (!meter->cores)
        return;
    meter->allowance -= (int64_t)passage->paid;
    if (meter->allowance < 0) {
        budget_pay(budget_open(meter->position, &meter->own), meter->cores, -meter->allowance);
        meter->allowance = 0;
    }
}

static bool is_stuck(const struct meter *meter, const struct wait *wait, uint64_t now)
{
    uint64_t from = wait->work_since > meter->progress_at ? wait->work_since : meter->progress_at;
    return now > from && now - from > (uint64_t)STUCK_NS << (meter->forced < 2 ? meter->forced : 2);
}

static enum verdict_of_gate try_once(struct passage *passage, uint32_t cores, struct wait *wait,
                                     uint64_t now)
{
    struct meter *meter = passage->meter;
    enum verdict_of_gate verdict = OPEN;
    bool forced = false;
    lock_take(&meter->lock);
    meter->cores = cores;
    price(passage, meter);
    bool full = meter->ahead >= AHEAD_NS || meter->outstanding >= AHEAD_LAUNCHES;
    if (full && !wait->work_since)
        wait->work_since = now;
    if (full && !(forced = is_stuck(meter, wait, now)))
        verdict = WAIT_WORK;
    else if (cores)
        verdict = take_credit(passage, wait, now);
    if (verdict == OPEN) {
        if (forced) {
            meter->progress_at = now;
            meter->forced++;
            meter->forced_in_all++;
        }
        pay(passage);
        passage->now = now;
        passage->forced = meter->forced_in_all;
        meter_enter(passage);
    }
    lock_drop(&meter->lock);
    return verdict;
}

static void rest(const struct passage *passage, enum verdict_of_gate verdict, struct wait *wait,
                 uint64_t now)
{
    struct meter *meter = passage->meter;
    uint64_t ns = STEP_NS;
    if (verdict == WAIT_WORK)
        ns = now - wait->since < 2 * SHORT_NS ? SHORT_NS : READ_NS;
    else if (verdict == WAIT_CREDIT)
        ns = wait->sleep < STEP_NS ? wait->sleep : STEP_NS;
    if (verdict != WAIT_WORK && meter->marks && ns > LOOK_NS)
        ns = LOOK_NS;
    if (verdict == WAIT_TURN) {
        budget_await(budget_open(meter->position, &meter->own), ns);
        return;
    }
    struct timespec timeout = {.tv_nsec = (long)ns};
    syscall(SYS_nanosleep, &timeout, NULL);
}

static void leave_queue(struct passage *passage)
{
    if (!passage->queued)
        return;
    budget_leave(budget_open(passage->meter->position, &passage->meter->own), passage->ticket);
    passage->queued = false;
}

static void undo(struct passage *passage)
{
    passage->stream = NULL;
    meter_after(passage, false);
    meter_leave(passage);
}

static void wait_paused(void)
{
    struct timespec timeout = {.tv_nsec = STEP_NS};
    syscall(SYS_nanosleep, &timeout, NULL);
}

static void note_wait(int position, const struct wait *wait, uint64_t now)
{
    /* The first launch of all may have been held back by a pause, and nothing is metered after it. */
    struct meter *meter = wait->held_since ? meter_make(position) : NULL;
    if (meter)
        SHARED_ADD(budget_open(position, &meter->own)->waited, now - wait->held_since);
}

/* Returns whether the launch is to be metered. */
static bool pass(struct passage *passage, int position)
{
    struct wait wait = {0};
    for (;;) {
        struct window window = window_of(position);
        uint64_t now = now_ns(CLOCK_MONOTONIC);
        bool turn = !window.shared || lease_held(position);
        if (window.paused || !turn) {
            if (passage->meter)
                leave_queue(passage);
            if (!wait.held_since)
                wait.held_since = now;
            if (window.paused)
                wait_paused();
            else
                lease_await(position, now + STEP_NS);
            continue;
        }
        if (!window.cores && !(window.shared && lease_is_active(position))) {
            if (passage->meter)
                leave_queue(passage);
            note_wait(position, &wait, now);
            return false;
        }
        if (!passage->meter && !(passage->meter = meter_make(position)))
            return false;
        struct meter *meter = passage->meter;
        if (meter->marks && now - atomic_load_explicit(&meter->read_at, memory_order_relaxed) > READ_NS)
            meter_read(meter);
        enum verdict_of_gate verdict = try_once(passage, window.cores, &wait, now);
        if (verdict == OPEN && (!window.shared || lease_held(position))) {
            note_wait(position, &wait, now);
            return true;
        }
        if (verdict == OPEN) {
            undo(passage); /* the turn ended meanwhile */
            continue;
        }
        if (!wait.since)
            wait.since = now;
        if (!wait.held_since)
            wait.held_since = now;
        if (verdict == WAIT_WORK)
            meter_expire(meter, now);
        rest(passage, verdict, &wait, now);
        meter_read(meter);
    }
}

/* By the explicit name of a default stream, since the entries for programs with one for each thread take NULL for it. */
static CUstream explicit_stream(CUstream stream, bool per_thread)
{
    return stream ? stream : (CUstream)(uintptr_t)(per_thread ? 2 : 1);
}

void gate_enter(struct passage *passage, CUstream stream, bool per_thread, uint64_t key)
{
    int before = errno, capturing = 0;
    *passage = (struct passage){.key = key, .handle = explicit_stream(stream, per_thread)};
    if (target_stream(passage->handle, &passage->to) && passage->to.position != NO_POSITION &&
        REAL(cuStreamIsCapturing)(passage->handle, &capturing) == CUDA_SUCCESS && !capturing) {
        if (pass(passage, passage->to.position))
            meter_before(passage);
        else
            passage->meter = NULL;
    }
    errno = before;
}

void gate_leave(struct passage *passage, CUresult result)
{
    int before = errno;
    if (!passage->meter)
        return;
    meter_after(passage, result == CUDA_SUCCESS);
    meter_leave(passage);
    errno = before;
}
