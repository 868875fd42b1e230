#include "making.h"

#include "account.h"
#include "credit.h"
#include "ledger.h"
#include "lease.h"
#include "window.h"

enum { STEP_NS = 5000000 };

/* As measured on the host (`vgpu calibrate`). Here it cannot be measured: what others lose is theirs to see. */
static uint64_t time_of(int position)
{
    struct vgpu_quota_device device;
    bool known = account_device(position, &device) && device.making_time;
    return known ? device.making_time : VGPU_MAKING_TIME;
}

/* A slice with a cap makes one when it has credit, as it launches: so processes that come without end are as many as it
 * can pay for. False: no memory, or the window is not known. */
static bool wait_for_credit(struct launch *launch, int position)
{
    struct wait wait = {0};
    struct window window;
    for (;;) {
        window = window_of(position);
        launch->now = now_ns(CLOCK_MONOTONIC);
        launch->meter = meter_make(position);
        if (!launch->meter)
            return false;
        if (window.unknown || !window.cores)
            break;
        enum verdict_of_gate verdict = credit_weigh(launch, window.cores, &wait);
        if (verdict == OPEN)
            break;
        if (!wait.held_since)
            wait.held_since = launch->now;
        budget_await(&launch->meter->budget,
                     verdict == WAIT_CREDIT && wait.sleep < STEP_NS ? wait.sleep : STEP_NS);
    }
    if (launch->queued)
        budget_leave(&launch->meter->budget, launch->ticket);
    return !window.unknown;
}

static void pay(struct meter *meter, uint64_t time, uint64_t less)
{
    struct window window = window_of(meter->position);
    lock_take(&meter->lock);
    budget_open(&meter->budget, meter->position, now_ns(CLOCK_MONOTONIC));
    budget_spend(&meter->budget, window.cores, time);
    budget_refund(&meter->budget, window.cores, less);
    lock_drop(&meter->lock);
    if (window.shared)
        lease_tell_making(meter->position, time != 0);
}

bool making_begin(struct making_time *making, int position)
{
    struct launch launch = {.position = position};
    *making = (struct making_time){.position = position};
    struct window window = window_of(position);
    if (window.unknown)
        return false;
    if (!window.cores && !(window.shared && lease_is_handed_out()))
        return true; /* nobody counts */
    if (!wait_for_credit(&launch, position))
        return false;
    making->time = time_of(position);
    pay(launch.meter, making->time, 0);
    making->since = now_ns(CLOCK_MONOTONIC);
    return true;
}

void making_end(const struct making_time *making)
{
    struct meter *meter = making->since ? meter_of(making->position) : NULL;
    uint64_t took = meter ? now_ns(CLOCK_MONOTONIC) - making->since : 0;
    if (meter)
        pay(meter, 0, took < making->time ? making->time - took : 0);
}
