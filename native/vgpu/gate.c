/* Where a launch waits until it may be made: for the quota, a turn, credit, or the end of what is under way. */
#include "gate.h"

#include "capture.h"
#include "credit.h"
#include "ledger.h"
#include "lease.h"
#include "log.h"

#include <errno.h>

#define MS UINT64_C(1000000)

enum {
    LOOK_NS = 200000,   /* between two looks at what has ended */
    STEP_NS = 5000000,  /* the longest sleep */
    SHORT_NS = 20000,   /* the shortest */
    AWAKE_NS = 2500000, /* so long a thread looks for short work without sleeping */
    NOTE_NS = 50000000, /* between two notes of a wait that goes on */
    CUDA_ERROR_OPERATING_SYSTEM = 304
};

#define PATIENCE_NS (2000 * MS) /* with what should be there and is not */

static void rest(const struct launch *launch, enum verdict_of_gate verdict, const struct wait *wait)
{
    struct meter *meter = launch->meter;
    bool busy = atomic_load(&meter->busy) != 0;
    uint64_t ns = STEP_NS;
    if (verdict == WAIT_PLACE)
        ns = LOOK_NS / 2;
    else if (verdict == WAIT_WORK) /* of many that wait, some look */
        ns = (uint64_t)(launch->now - wait->held_since < LOOK_NS ? SHORT_NS : LOOK_NS / 2) *
             (1 + lease_waiters(meter->position) / 2);
    else if (verdict == WAIT_CREDIT && !busy)
        ns = wait->sleep < STEP_NS ? wait->sleep : STEP_NS;
    else if (busy) /* how long it goes on is charged: look at it */
        ns = launch->now - wait->held_since < LOOK_NS ? SHORT_NS : LOOK_NS;
    if (verdict != WAIT_WORK && verdict != WAIT_PLACE && !busy) {
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

/* Also while it waits: nvcd has to know of long waits before they end. */
static void note_wait(int position, struct wait *wait, uint64_t now)
{
    uint64_t since = wait->noted ? wait->noted : wait->held_since;
    /* The first launch of all may have been held back by a pause, and nothing is metered after it. */
    struct meter *meter = wait->held_since ? meter_make(position) : NULL;
    if (!meter)
        return;
    lock_take(&meter->lock);
    budget_open(&meter->budget, position, now);
    SHARED_ADD(meter->budget.shared->waited, now - since);
    lock_drop(&meter->lock);
    wait->noted = now;
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

/* Whether the launch may be made now, or what it waits for. `meter` is NULL where it need not be known. */
static enum verdict_of_gate judge(struct launch *launch, int position, struct window window,
                                  struct wait *wait)
{
    enum verdict_of_gate verdict;
    if (window.unknown)
        return WAIT_QUOTA;
    if (window.paused)
        return WAIT_RESUME;
    if (window.cores && window.shared && lease_is_unasked(position)) {
        launch->meter = meter_make(position);
        verdict = launch->meter ? credit_weigh(launch, window.cores, wait) : WAIT_MEMORY;
        if (verdict != OPEN)
            return verdict;
    }
    if (window.shared && !lease_held(position))
        return WAIT_LEASE;
    launch->paced = window.weighed;
    bool leased = window.shared && lease_is_active(position);
    if (!window.cores && !window.weighed && !leased) {
        leave_queue(launch);
        launch->meter = NULL;
        return OPEN;
    }
    struct meter *meter = launch->meter = meter_make(position);
    if (!meter)
        return WAIT_MEMORY;
    if (atomic_load(&meter->busy) &&
        launch->now - atomic_load_explicit(&meter->looked, memory_order_relaxed) > LOOK_NS)
        meter_look(meter, launch->now, 0);
    if (window.shared && lease_takes_turns(position) && lease_is_full(position))
        return WAIT_WORK;
    if (!window.cores) /* it had some when it began to wait */
        leave_queue(launch);
    verdict = credit_begin(launch, window.cores, wait);
    if (verdict == OPEN && window.shared && !lease_held(position)) {
        meter_end(launch, false); /* the turn ended meanwhile */
        return WAIT_LEASE;
    }
    return verdict;
}

/* For what is under way to end, or for credit. */
static void wait_at_meter(struct launch *launch, int position, enum verdict_of_gate verdict,
                          const struct wait *wait)
{
    if (verdict == WAIT_CREDIT && lease_takes_turns(position))
        lease_hand_back(position);
    /* Few short ones are under way: the device would be idle before a thread that sleeps is awake. */
    if (verdict == WAIT_WORK && launch->now - wait->held_since < AWAKE_NS &&
        meter_ends_soon(launch->meter) && meter_peek(launch->meter, launch->now))
        return;
    if (verdict != WAIT_WORK && !atomic_load(&launch->meter->busy))
        marks_set_clock(launch->meter, launch->handle, launch->to.context, launch->now);
    rest(launch, verdict, wait);
    meter_look(launch->meter, now_ns(CLOCK_MONOTONIC), 0);
}

/* Until the launch may be made. */
static CUresult wait_at(struct launch *launch, int position, struct wait *wait)
{
    for (;;) {
        struct window window = window_of(position);
        uint64_t now = launch->now = now_ns(CLOCK_MONOTONIC);
        enum verdict_of_gate verdict = judge(launch, position, window, wait);
        bool at_meter =
            verdict == WAIT_WORK || verdict == WAIT_CREDIT || verdict == WAIT_TURN || verdict == WAIT_PLACE;
        if (verdict == OPEN) {
            note_wait(position, wait, now);
            return CUDA_SUCCESS;
        }
        /* So that it is known when what runs has ended, or, of what a launch waits for to end, some. */
        bool known =
            verdict == WAIT_WORK && meter_ends_soon(launch->meter) && streams_have_marks(launch->meter);
        if (!wait->held_since && at_meter && !known)
            mark_put(launch->meter, launch->handle, (uintptr_t)launch->handle, launch->to.context,
                     launch->thread);
        if (!wait->held_since)
            wait->held_since = now;
        if (now - (wait->noted ? wait->noted : wait->held_since) > NOTE_NS)
            note_wait(position, wait, now);
        count(wait, position, verdict == WAIT_WORK || verdict == WAIT_LEASE);
        if (at_meter) {
            wait_at_meter(launch, position, verdict, wait);
            continue;
        }
        leave_queue(launch);
        if (verdict == WAIT_QUOTA && !wait_for("the quota cannot be read", wait, now))
            return CUDA_ERROR_OPERATING_SYSTEM;
        if (verdict == WAIT_MEMORY && !wait_for("no memory to know what is launched", wait, now))
            return CUDA_ERROR_OUT_OF_MEMORY;
        if (verdict == WAIT_RESUME)
            pause_for(STEP_NS);
        if (verdict == WAIT_LEASE && credit_is_stuck(position, window.cores, wait, now))
            lease_stuck(position);
        if (verdict == WAIT_LEASE)
            lease_await(position, now + STEP_NS);
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
        launch->captures = capture_begins();
        launch->captured = capture_has(launch->handle);
        launch->position = at;
        if (!launch->captured)
            result = at != NO_POSITION ? pass(launch, at) : pass_unknown(launch);
    }
    if (result != CUDA_SUCCESS)
        launch->meter = NULL;
    if (launch->meter)
        stall_mark(launch);
    errno = before;
    return result;
}

void gate_expect_stall(CUstream stream, bool per_thread)
{
    if (window_is_open())
        return;
    int before = errno;
    struct launch launch = {.handle = explicit_stream(stream, per_thread)};
    launch.thread = (uintptr_t)launch.handle == 2 ? this_thread() : 0;
    if (!capture_has(launch.handle) && find_target(&launch))
        stall_expect(launch.handle, launch.to.context, launch.to.position, launch.thread);
    errno = before;
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

/* The stream captured when the launch was to be made, and may have ceased to: it may have run. */
static void note_escape(struct launch *launch)
{
    int position = launch->position;
    struct window window = window_of(position);
    bool metered = window.cores || window.weighed || lease_is_active(position);
    struct meter *meter = metered ? meter_make(position) : NULL;
    if (!meter)
        return;
    launch->meter = meter;
    launch->now = now_ns(CLOCK_MONOTONIC);
    lock_take(&meter->lock);
    bool begun = meter_begin(launch);
    lock_drop(&meter->lock);
    launch->meter = begun ? meter : NULL;
}

void gate_leave(struct launch *launch, CUresult result)
{
    int before = errno;
    if (launch->captured && result == CUDA_SUCCESS && !capture_is_same(launch->captures))
        note_escape(launch);
    if (launch->meter) {
        meter_end(launch, result == CUDA_SUCCESS);
        lease_launched(launch->meter->position);
    }
    errno = before;
}
