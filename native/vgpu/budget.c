#include "budget.h"

#include "clock.h"
#include "ledger.h"

#include <errno.h>

#define SECOND INT64_C(1000000000)

enum { DEBT_SECONDS = 30, HOLES = 7, HOLE_UNIT = 10, CROWD = 4096, SPARE = 5000000 };

struct vgpu_budget *budget_open(int position, struct vgpu_budget *own)
{
    struct process *in = process();
    struct vgpu_budget *found = own;
    if (!in)
        return own;
    lock_take(&in->account);
    if (ledger_open(in) && ledger_is_whole(in))
        found = &in->ledger->budgets[position];
    lock_drop(&in->account);
    return found;
}

static int64_t bounded(int64_t value, int64_t lowest, int64_t highest)
{
    return value < lowest ? lowest : value > highest ? highest : value;
}

/* Returns what of `add` was beyond the most that may be saved up. */
static uint64_t add_credit(struct vgpu_budget *budget, int64_t most, int64_t add, int64_t *now_there)
{
    int64_t seen = SHARED_READ(budget->credit), next;
    uint64_t beyond;
    do {
        next = bounded(seen, -DEBT_SECONDS * SECOND, most) + add;
        beyond = next > most ? (uint64_t)(next - most) : 0;
        next = bounded(next, -DEBT_SECONDS * SECOND, most);
    } while (!__atomic_compare_exchange_n(&budget->credit, &seen, next, false, __ATOMIC_SEQ_CST,
                                          __ATOMIC_SEQ_CST));
    *now_there = next;
    return beyond;
}

int64_t budget_refill(struct vgpu_budget *budget, uint32_t cores, uint64_t now, int64_t saved)
{
    now = clock_of_host(now);
    now += !now; /* 0: it was never refilled */
    uint64_t last = SHARED_READ(budget->refilled), passed = now - last;
    int64_t credit;
    if (!last)
        passed = BUDGET_PERIOD;
    else if (now < last && last - now < SECOND)
        passed = 0; /* another processor's clock, or process, was faster */
    else if (passed > (uint64_t)SECOND * DEBT_SECONDS * 100)
        passed = BUDGET_PERIOD; /* nonsense */
    /* Whoever moves the time adds the credit. */
    if (passed && !__atomic_compare_exchange_n(&budget->refilled, &last, now, false, __ATOMIC_SEQ_CST,
                                               __ATOMIC_SEQ_CST))
        passed = 0;
    int64_t most = saved / 100 * (int64_t)cores;
    uint64_t beyond = add_credit(budget, most, (int64_t)(passed * cores / 100), &credit);
    if (beyond)
        SHARED_ADD(budget->cover.forfeited, beyond);
    return credit;
}

int64_t budget_draw(struct vgpu_budget *budget, int64_t wanted)
{
    int64_t seen = SHARED_READ(budget->credit), taken;
    do {
        taken = seen < wanted ? seen : wanted;
        if (taken <= 0)
            return 0;
    } while (!__atomic_compare_exchange_n(&budget->credit, &seen, seen - taken, false, __ATOMIC_SEQ_CST,
                                          __ATOMIC_SEQ_CST));
    return taken;
}

void budget_pay(struct vgpu_budget *budget, uint32_t cores, int64_t time)
{
    int64_t credit;
    int64_t most = BUDGET_TURNS / 100 * (int64_t)cores;
    add_credit(budget, most, -bounded(time, -DEBT_SECONDS * SECOND, DEBT_SECONDS * SECOND), &credit);
}

/* Work of several streams and processes is reported in any order. What `busy_until` has passed over is a hole: its start
 * and its length in units of 1.024 microseconds, 32 bits each; the start wraps around after 73 minutes. */
static uint64_t hole_of(uint64_t start, uint64_t end)
{
    uint64_t units = (end - start) >> HOLE_UNIT;
    return units > UINT32_MAX ? 0 : (uint64_t)(uint32_t)(start >> HOLE_UNIT) << 32 | units;
}

static void add_hole(struct vgpu_budget *budget, uint64_t start, uint64_t end)
{
    uint64_t hole = hole_of(start, end);
    uint32_t oldest = 0, age = 0;
    if (!(uint32_t)hole)
        return;
    for (uint32_t i = 0; i < HOLES; i++) {
        uint64_t other = SHARED_READ(budget->cover.holes[i]);
        uint32_t behind = (uint32_t)((hole >> 32) - (other >> 32));
        if (!other || behind >= age) {
            oldest = i;
            age = other ? behind : UINT32_MAX;
        }
    }
    SHARED_WRITE(budget->cover.holes[oldest], hole);
}

/* What of an interval lies in a hole, which it fills. */
static uint64_t fill_hole(uint64_t *place, uint64_t start, uint64_t end)
{
    uint64_t hole = SHARED_READ(*place);
    uint32_t origin = (uint32_t)(hole >> 32);
    int64_t length = (int64_t)(hole & UINT32_MAX);
    int64_t from = (int32_t)((uint32_t)(start >> HOLE_UNIT) - origin);
    int64_t to = from + (int64_t)((end - start) >> HOLE_UNIT);
    if (!length || to <= 0 || from >= length)
        return 0;
    int64_t first = from > 0 ? from : 0, last = to < length ? to : length;
    /* The longer rest stays. */
    uint64_t rest = first >= length - last
                        ? (uint64_t)origin << 32 | (uint64_t)first
                        : (uint64_t)(uint32_t)(origin + (uint32_t)last) << 32 | (uint64_t)(length - last);
    if (!__atomic_compare_exchange_n(place, &hole, rest, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return 0;
    return (uint64_t)(last - first) << HOLE_UNIT;
}

static uint64_t fill(struct vgpu_budget *budget, uint64_t start, uint64_t end)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < HOLES && start < end; i++)
        sum += fill_hole(&budget->cover.holes[i], start, end);
    return sum;
}

/* The part of an interval that nobody has reported before. */
static uint64_t fresh_part(struct vgpu_budget *budget, uint64_t start, uint64_t end, uint64_t *until)
{
    uint64_t seen = SHARED_READ(budget->busy_until);
    do {
        /* More than a second ahead is nonsense. */
        if (seen >= end && seen - end < (uint64_t)SECOND * 60) {
            *until = seen;
            return fill(budget, start, end);
        }
    } while (!__atomic_compare_exchange_n(&budget->busy_until, &seen, end, false, __ATOMIC_SEQ_CST,
                                          __ATOMIC_SEQ_CST));
    *until = seen < end ? seen : start;
    if (*until <= start) {
        if (seen) /* else this is the first report, and there was nothing before it */
            add_hole(budget, *until, start);
        return end - start;
    }
    return end - *until + fill(budget, start, *until);
}

uint64_t budget_cover(struct vgpu_budget *budget, uint64_t start, uint64_t end, uint64_t wanted)
{
    uint64_t until, most = end - start;
    end = clock_of_host(end);
    start = end - most;
    uint64_t fresh = fresh_part(budget, start, end, &until);
    if (fresh > most)
        fresh = most;
    /* Time that one stream held without using it, others may have used, which tell of that later. */
    uint64_t spare = SHARED_READ(budget->cover.spare);
    if (spare > SPARE || (start > until && start - until > SPARE))
        spare = 0;
    uint64_t at_hand = start < until ? spare : 0;
    if (at_hand > most - fresh)
        at_hand = most - fresh;
    uint64_t used = fresh + at_hand < wanted ? fresh + at_hand : wanted;
    spare += fresh - used; /* the sum is not below zero */
    SHARED_WRITE(budget->cover.spare, spare < SPARE ? spare : SPARE);
    SHARED_ADD(budget->charged, used);
    return used;
}

uint32_t budget_queue(struct vgpu_budget *budget)
{
    return SHARED_ADD(budget->ticket, 1);
}

bool budget_is_queued(struct vgpu_budget *budget)
{
    return SHARED_READ(budget->ticket) != SHARED_READ(budget->served);
}

bool budget_is_turn(struct vgpu_budget *budget, uint32_t ticket)
{
    int32_t distance = (int32_t)(ticket - SHARED_READ(budget->served));
    return distance <= 0 || distance > CROWD;
}

void budget_leave(struct vgpu_budget *budget, uint32_t ticket)
{
    uint32_t seen = SHARED_READ(budget->served), next = ticket + 1;
    while ((int32_t)(next - seen) > 0 || (int32_t)(seen - next) > CROWD)
        if (__atomic_compare_exchange_n(&budget->served, &seen, next, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST))
            break;
    if (SHARED_READ(budget->ticket) != next)
        syscall(SYS_futex, &budget->served, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void budget_await(struct vgpu_budget *budget, uint64_t ns)
{
    struct timespec timeout = {.tv_nsec = (long)(ns < SECOND ? ns : SECOND - 1)};
    uint32_t served = SHARED_READ(budget->served);
    /* An error other than these is of a file that was cut short. */
    if (syscall(SYS_futex, &budget->served, FUTEX_WAIT, served, &timeout, NULL, 0) != 0 &&
        errno != ETIMEDOUT && errno != EAGAIN && errno != EINTR)
        syscall(SYS_nanosleep, &timeout, NULL);
}
