/* A launch is let through when the slice has credit and few enough of this process's launches are under way. Time alone
 * brings credit. A kernel may wait on the device for one that is launched after it: so what is held back for long while
 * nothing ends is let through all the same, and paid for. */
#include "gate.h"

#include "ledger.h"
#include "lease.h"
#include "log.h"

#include <errno.h>

#define MS UINT64_C(1000000)

enum {
    LOOK_NS = 200000,  /* between two looks at what has ended */
    STEP_NS = 5000000, /* the longest sleep */
    SHORT_NS = 20000,  /* the shortest */
    STUCK_NS = 50000000,
    TURN_NS = 10000000, /* after which who has the turn is taken for dead */
    TURNS_BITS = 12,    /* so many turns are passed over at once, at most */
    SPARE_NS = 150000,  /* for so long, what is twice that is not looked at again */
    CUDA_ERROR_OPERATING_SYSTEM = 304
};

#define PATIENCE_NS (2000 * MS) /* with what should be there and is not */

enum verdict_of_gate { OPEN, WAIT_WORK, WAIT_CREDIT, WAIT_TURN, WAIT_MEMORY };

struct wait {
    uint64_t held_since; /* for whatever reason */
    uint64_t work_since, turn_since, lack_since;
    int64_t owed;    /* when the launch began to wait for credit: what was missing */
    uint32_t served; /* when the turn was looked at */
    uint32_t dead;   /* whose turn passed while nothing happened, one after the other */
    uint64_t sleep;
    bool counted; /* as one that goes on as soon as it may: the lease is wanted */
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

/* The lock is held. */
static enum verdict_of_gate take_credit(struct launch *launch, struct wait *wait)
{
    struct meter *meter = launch->meter;
    struct budget *budget = &meter->budget;
    uint64_t saved = lease_takes_turns(meter->position) ? BUDGET_TURNS : BUDGET_PERIOD;
    budget_open(budget, meter->position, launch->now);
    if (!launch->queued && !budget_is_queued(budget) && launch->now - meter->weighed < SPARE_NS &&
        SHARED_READ(budget->shared->credit) > 2 * SPARE_NS)
        return OPEN;
    meter->weighed = launch->now;
    int64_t credit = budget_refill(budget, meter->cores, launch->now, saved);
    /* Who had to wait goes on with some credit, so that what can overlap does, and is not chopped. */
    int64_t enough = launch->queued ? BUDGET_PERIOD / 400 * (int64_t)meter->cores : 1;
    if (has_turn(launch, credit, wait) && credit >= enough) {
        if (launch->queued)
            budget_leave(budget, launch->ticket);
        launch->queued = false;
        return OPEN;
    }
    if (!launch->queued) {
        launch->ticket = budget_queue(budget);
        launch->queued = true;
        wait->turn_since = launch->now;
        wait->served = SHARED_READ(budget->shared->served);
        wait->owed = enough - credit;
    }
    int64_t missing = BUDGET_PERIOD / 400 * (int64_t)meter->cores - credit;
    wait->sleep = missing > 0 ? (uint64_t)missing / meter->cores * 100 : 0;
    return budget_is_turn(budget, launch->ticket) ? WAIT_CREDIT : WAIT_TURN;
}

/* Nothing has ended for long, so that what runs may wait for this launch. Not before the credit that was missing when the
 * launch began to wait would have come, had nothing run. */
static bool is_stuck(const struct meter *meter, const struct wait *wait, uint64_t now)
{
    uint64_t from = wait->held_since > meter->progress ? wait->held_since : meter->progress;
    uint64_t due = STUCK_NS;
    if (meter->cores && wait->owed > 0 && (uint64_t)wait->owed / meter->cores * 100 > due)
        due = (uint64_t)wait->owed / meter->cores * 100;
    return meter->under_way && wait->held_since && now > from && now - from > due;
}

static enum verdict_of_gate try_once(struct launch *launch, uint32_t cores, struct wait *wait)
{
    struct meter *meter = launch->meter;
    enum verdict_of_gate verdict = OPEN;
    lock_take(&meter->lock);
    meter->cores = cores;
    if (meter->under_way >= meter->allowed)
        verdict = WAIT_WORK;
    else if (cores)
        verdict = take_credit(launch, wait);
    if (verdict != OPEN && is_stuck(meter, wait, launch->now)) {
        meter->progress = launch->now;
        verdict = OPEN;
    }
    if (verdict == OPEN && !meter_begin(launch))
        verdict = WAIT_MEMORY;
    lock_drop(&meter->lock);
    return verdict;
}

static void rest(const struct launch *launch, enum verdict_of_gate verdict, const struct wait *wait)
{
    struct meter *meter = launch->meter;
    bool busy = atomic_load(&meter->busy) != 0;
    uint64_t ns = STEP_NS;
    if (verdict == WAIT_WORK)
        ns = launch->now - wait->held_since < LOOK_NS ? SHORT_NS : LOOK_NS / 2;
    else if (verdict == WAIT_CREDIT && !busy)
        ns = wait->sleep < STEP_NS ? wait->sleep : STEP_NS;
    else if (busy) /* how long it goes on is charged: look at it */
        ns = launch->now - wait->held_since < LOOK_NS ? SHORT_NS : LOOK_NS;
    if (verdict == WAIT_TURN && !busy) {
        budget_await(&meter->budget, ns);
        return;
    }
    struct timespec timeout = {.tv_nsec = (long)ns};
    syscall(SYS_nanosleep, &timeout, NULL);
}

static void leave_queue(struct launch *launch)
{
    if (launch->meter && launch->queued)
        budget_leave(&launch->meter->budget, launch->ticket);
    launch->queued = false;
}

static void pause_for(uint64_t ns)
{
    struct timespec timeout = {.tv_nsec = (long)ns};
    syscall(SYS_nanosleep, &timeout, NULL);
}

static void note_wait(int position, const struct wait *wait, uint64_t now)
{
    /* The first launch of all may have been held back by a pause, and nothing is metered after it. */
    struct meter *meter = wait->held_since ? meter_make(position) : NULL;
    if (!meter)
        return;
    lock_take(&meter->lock);
    budget_open(&meter->budget, position, now);
    SHARED_ADD(meter->budget.shared->waited, now - wait->held_since);
    lock_drop(&meter->lock);
}

/* False: it has lacked for too long. */
static bool wait_for(const char *what, struct wait *wait, uint64_t now)
{
    wait->lack_since = wait->lack_since ? wait->lack_since : now;
    if (now - wait->lack_since > PATIENCE_NS) {
        LOG_ONCE("%s: launches are denied", what);
        return false;
    }
    pause_for(STEP_NS);
    return true;
}

static void count(struct wait *wait, int position, bool counted)
{
    if (wait->counted != counted)
        lease_wanted(position, counted);
    wait->counted = counted;
}

/* Until the launch may be made. `meter` is NULL where it need not be known. */
static CUresult wait_at(struct launch *launch, int position, struct wait *wait)
{
    for (;;) {
        struct window window = window_of(position);
        uint64_t now = launch->now = now_ns(CLOCK_MONOTONIC);
        bool turn = window.unknown || !window.shared || lease_held(position);
        if (window.unknown || window.paused || !turn) {
            leave_queue(launch);
            if (window.unknown && !wait_for("the quota cannot be read", wait, now))
                return CUDA_ERROR_OPERATING_SYSTEM;
            if (!wait->held_since)
                wait->held_since = now;
            count(wait, position, !window.paused && !turn);
            if (window.paused)
                pause_for(STEP_NS);
            else if (!turn)
                lease_await(position, now + STEP_NS);
            continue;
        }
        if (!window.cores && !(window.shared && lease_is_active(position))) {
            leave_queue(launch);
            note_wait(position, wait, now);
            launch->meter = NULL;
            return CUDA_SUCCESS;
        }
        enum verdict_of_gate verdict = WAIT_MEMORY;
        if ((launch->meter = meter_make(position))) {
            struct meter *meter = launch->meter;
            if (atomic_load(&meter->busy) &&
                now - atomic_load_explicit(&meter->looked, memory_order_relaxed) > LOOK_NS)
                meter_look(meter, now, 0);
            bool full = window.shared && lease_takes_turns(position) && lease_is_full(position);
            verdict = full ? WAIT_WORK : try_once(launch, window.cores, wait);
        }
        if (verdict == OPEN && (!window.shared || lease_held(position))) {
            note_wait(position, wait, now);
            return CUDA_SUCCESS;
        }
        if (verdict == OPEN) {
            meter_end(launch, false); /* the turn ended meanwhile */
            continue;
        }
        if (!wait->held_since && verdict != WAIT_MEMORY) /* so that it is known when what runs has ended */
            mark_put(launch->meter, launch->handle, (uintptr_t)launch->handle, launch->to.context,
                     launch->thread);
        if (!wait->held_since)
            wait->held_since = now;
        count(wait, position, verdict == WAIT_WORK);
        if (verdict == WAIT_MEMORY) {
            if (!wait_for("no memory to know what is launched", wait, now))
                return CUDA_ERROR_OUT_OF_MEMORY;
            continue;
        }
        if (verdict != WAIT_WORK && !atomic_load(&launch->meter->busy))
            marks_set_clock(launch->meter, launch->handle, launch->to.context, now);
        rest(launch, verdict, wait);
        meter_look(launch->meter, now_ns(CLOCK_MONOTONIC), 0);
    }
}

static CUresult pass(struct launch *launch, int position)
{
    struct wait wait = {0};
    CUresult result = wait_at(launch, position, &wait);
    count(&wait, position, false);
    return result;
}

/* The quota has no such device, or cannot be read: what may be launched there is not known. */
static CUresult pass_unknown(struct launch *launch)
{
    struct wait wait = {0};
    while (wait_for("the quota does not have the device", &wait, now_ns(CLOCK_MONOTONIC)))
        if (target_stream(launch->handle, &launch->to) && launch->to.position != NO_POSITION)
            return pass(launch, launch->to.position);
    return CUDA_ERROR_OPERATING_SYSTEM;
}

/* By the explicit name of a default stream, since the entries for programs with one for each thread take NULL for it. */
static CUstream explicit_stream(CUstream stream, bool per_thread)
{
    return stream ? stream : (CUstream)(uintptr_t)(per_thread ? 2 : 1);
}

static bool is_capturing(CUstream stream)
{
    int capturing = 0;
    struct process *in = process();
    if (in && !atomic_load_explicit(&in->captures, memory_order_relaxed))
        return false;
    return REAL(cuStreamIsCapturing)(stream, &capturing) != CUDA_SUCCESS || capturing;
}

/* A thread mostly launches in the stream that it launched in before. */
static bool find_target(struct launch *launch)
{
    static __thread struct {
        CUstream handle;
        struct target to;
        struct process *in; /* which a fork wipes */
        uint32_t ended;
    } last;
    struct process *in = process();
    uint32_t ended = in ? atomic_load_explicit(&in->streams_ended, memory_order_acquire) : 0;
    if (in && last.in == in && last.handle == launch->handle && last.ended == ended) {
        launch->to = last.to;
        return true;
    }
    if (!target_stream(launch->handle, &launch->to))
        return false;
    if ((uintptr_t)launch->handle > 2) { /* a default stream is another one in each context */
        last.handle = launch->handle;
        last.to = launch->to;
        last.ended = ended;
        last.in = in;
    }
    return true;
}

static CUresult enter(struct launch *launch, CUstream stream, bool per_thread, int position)
{
    int before = errno;
    CUresult result = CUDA_SUCCESS;
    *launch = (struct launch){.handle = explicit_stream(stream, per_thread)};
    launch->thread = (uintptr_t)launch->handle == 2 ? this_thread() : 0;
    if (find_target(launch)) {
        int at = position == NO_POSITION ? launch->to.position : position;
        if (!is_capturing(launch->handle))
            result = at != NO_POSITION ? pass(launch, at) : pass_unknown(launch);
    }
    if (result != CUDA_SUCCESS)
        launch->meter = NULL;
    errno = before;
    return result;
}

CUresult gate_enter(struct launch *launch, CUstream stream, bool per_thread)
{
    CUresult result = enter(launch, stream, per_thread, NO_POSITION);
    launch->prompt = true;
    return result;
}

CUresult gate_enter_work(struct launch *launch, CUstream stream, bool per_thread)
{
    return enter(launch, stream, per_thread, NO_POSITION);
}

CUresult gate_enter_for(struct launch *launch, CUstream stream, bool per_thread, int position)
{
    return enter(launch, stream, per_thread, position);
}

void gate_leave(struct launch *launch, CUresult result)
{
    int before = errno;
    if (launch->meter)
        meter_end(launch, result == CUDA_SUCCESS);
    errno = before;
}
