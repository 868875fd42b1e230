/* A launch waits while its slice is in debt, and while much of the process's own work is under way. A kernel may wait on the
 * device for one that is launched after it. So nobody waits for longer than the debt that it found takes to pay, nor while
 * nothing ends: see pacer_is_stuck(). */
#include "gate.h"

#include "slice/budget.h"
#include "process/capture.h"
#include "charge/charge.h"
#include "slice/ledger.h"
#include "process/log.h"

#include <errno.h>

enum {
    STEP_NS = 5000000, /* the longest sleep */
    SHORT_NS = 20000,  /* the shortest */
    LOOK_NS = 500000,  /* likewise, while work is under way */
    STUCK_NS = 50000000,
    AGAIN_NS = 5000000, /* who has waited goes on when it has credit for so much of the time */
};

#define PATIENCE_NS UINT64_C(2000000000) /* with a quota that cannot be read */

struct wait {
    uint64_t since, noted; /* 0: it did not wait */
    uint64_t most;         /* it goes on then in any case */
};

static void sleep_ns(uint64_t ns)
{
    struct timespec timeout = {.tv_nsec = (long)(ns < SHORT_NS ? SHORT_NS : ns > STEP_NS ? STEP_NS : ns)};
    syscall(SYS_nanosleep, &timeout, NULL);
}

/* What counts is the time in which the device did nothing for the process, which was `idle` from then on. */
static void note(struct wait *wait, int position, uint64_t idle, uint64_t now)
{
    if (!wait->since)
        wait->since = wait->noted = now;
    uint64_t from = idle > wait->noted ? idle : wait->noted;
    if (position != NO_POSITION && now > from)
        SHARED_ADD(budget_of(position, now)->waited, now - from);
    wait->noted = now;
}

/* Nanoseconds until it is worth to look again; 0: the launch may be made. */
static uint64_t must_wait(struct launch *launch, uint32_t cores, struct wait *wait, uint64_t *idle,
                          uint64_t now)
{
    struct pacer *pacer = launch->pacer;
    pacer_look(pacer, cores, now);
    *idle = pacer->since ? now : pacer->latest;
    if (!cores)
        return 0;
    int64_t credit = budget_refill(budget_of(pacer->position, now), cores, now);
    int64_t enough = wait->most ? AGAIN_NS / 100 * (int64_t)cores : 0;
    if (wait->most && (now >= wait->most || now < wait->since)) /* the latter: the clock was set back */
        return 0;
    if (wait->most && pacer_is_stuck(pacer, wait->since, now))
        return 0;
    if (credit >= enough && pacer_has_room(pacer, launch->handle))
        return 0;
    if (!wait->most)
        wait->most = now + STUCK_NS + (credit < 0 ? (uint64_t)-credit / cores * 100 : 0);
    uint64_t ns = credit >= enough ? pacer->pace / 4 + 1 : (uint64_t)(enough - credit) / cores * 100 + 1;
    return pacer->since && ns > LOOK_NS ? LOOK_NS : ns; /* when work has ended is to be known soon */
}

/* True: it is held back, and was for a moment. */
static bool hold(struct launch *launch, const struct target *to, struct wait *wait)
{
    struct window window = window_of(to->position);
    uint64_t now = now_ns(CLOCK_MONOTONIC), ns = STEP_NS, idle = 0;
    launch->pacer = NULL;
    if (!window.unknown && !window.paused) {
        launch->pacer = window.measured ? pacer_of(to->context, to->position) : NULL;
        ns = launch->pacer ? must_wait(launch, window.cores, wait, &idle, now) : 0;
    }
    if (ns || wait->since)
        note(wait, window.unknown ? NO_POSITION : to->position, idle, now);
    if (ns)
        sleep_ns(ns);
    return ns != 0;
}

static CUresult pass(struct launch *launch)
{
    struct wait wait = {0};
    struct target to;
    while (target_stream(launch->handle, &to) && hold(launch, &to, &wait))
        if (wait.noted - wait.since > PATIENCE_NS && window_of(to.position).unknown) {
            LOG_ONCE("the quota cannot be read, or does not have the device: launches are denied");
            return CUDA_ERROR_OPERATING_SYSTEM;
        }
    if (launch->pacer)
        pacer_begin(launch, now_ns(CLOCK_MONOTONIC));
    return CUDA_SUCCESS;
}

/* By the explicit name of a default stream, since the entries for programs with one for each thread take NULL for it. */
CUresult gate_enter(struct launch *launch, CUstream stream, bool per_thread)
{
    int before = errno, mode = capture_leave();
    *launch = (struct launch){.handle = stream ? stream : (CUstream)(uintptr_t)(per_thread ? 2 : 1)};
    CUresult result = capture_has(launch->handle) ? CUDA_SUCCESS : pass(launch);
    capture_return(mode);
    errno = before;
    return result;
}

void gate_leave(struct launch *launch, CUresult result)
{
    if (!launch->pacer)
        return;
    int before = errno, mode = capture_leave();
    pacer_end(launch, result == CUDA_SUCCESS);
    capture_return(mode);
    errno = before;
}

void gate_look(void)
{
    struct pacer *pacer;
    for (uint32_t i = 0; (pacer = pacer_next(&i));) {
        struct window window = window_of(pacer->position);
        if (!window.measured || !pacer->since)
            continue;
        int mode = capture_leave();
        pacer_look(pacer, window.cores, now_ns(CLOCK_MONOTONIC));
        capture_return(mode);
    }
}
