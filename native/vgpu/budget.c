#include "budget.h"

#include "clock.h"
#include "ledger.h"

#include <errno.h>

#define SECOND INT64_C(1000000000)

/* LEDGER_DEBT: what a slice can owe at most; nvcd's own accounts have another bound. ALIVE: a living process says at least so
 * often that its work goes on; a dead one is charged for that much beyond its last word, in which the driver lets go of
 * its context. */
#define LEDGER_DEBT (600 * SECOND)
enum { CROWD = 4096, ALIVE_NS = 25000000, NONSENSE = 60, REAP_NS = 10000000 };

/* What a dead process may have had beyond that: at first; what counts of one death; for how long, and how often, that
 * can double. */
#define SILENT_MOST (UINT64_C(60) * 1000000000)
#define DOUBT_MOST (UINT64_C(86400) * 1000000000)
enum { SILENT_NS = 400000000, DOUBTS = 4 };

/* The slot may be another one than before: what was shown in the old one is shown in the new one. */
static void use(struct budget *budget, struct vgpu_budget *shared, struct vgpu_interval *own)
{
    struct vgpu_interval *before = budget->own;
    budget->shared = shared;
    budget->own = own;
    if (!before || before == own)
        return;
    SHARED_WRITE(own->seen, SHARED_READ(before->seen));
    SHARED_WRITE(own->since, SHARED_READ(before->since));
    SHARED_WRITE(before->since, 0);
}

/* Unfinished work of which nobody has said for long that it goes on: of the dead, or of who is stopped. */
static bool is_silent(const struct budget *budget, uint64_t now)
{
    uint64_t host = clock_of_host(now);
    for (uint32_t i = 0; i < budget->slots; i++) {
        uint64_t seen = SHARED_READ(budget->others[i].seen);
        if (SHARED_READ(budget->others[i].since) && seen + ALIVE_NS < host)
            return true;
    }
    return false;
}

void budget_reopen(struct budget *budget, int position, uint64_t now)
{
    struct process *in = process();
    budget->opened = now;
    if (in) {
        lock_take(&in->account);
        if (ledger_enter(in) && ledger_is_whole(in)) {
            uint32_t slots = SHARED_READ(in->ledger->head.high_water);
            budget->others = in->ledger->intervals[position];
            budget->slots = slots < in->slot ? in->slot : slots < VGPU_SLOTS ? slots : VGPU_SLOTS;
            use(budget, &in->ledger->budgets[position], &budget->others[in->slot - 1]);
            /* Else the slice would be charged for the work of the dead until somebody allocates memory. */
            if (is_silent(budget, now) && now_ns(CLOCK_MONOTONIC_COARSE) - in->reaped_at > REAP_NS)
                ledger_reap(in);
        }
        lock_drop(&in->account);
    }
    if (!budget->shared)
        use(budget, &budget->fallback.budget, &budget->fallback.interval);
}

static void add_credit(struct vgpu_budget *shared, int64_t add, int64_t most)
{
    int64_t seen = SHARED_READ(shared->credit), next;
    do {
        next = seen < -LEDGER_DEBT ? -LEDGER_DEBT : seen;
        next += add > LEDGER_DEBT ? LEDGER_DEBT : add < -LEDGER_DEBT ? -LEDGER_DEBT : add;
        next = next > most ? most : next;
        next = next < -LEDGER_DEBT ? -LEDGER_DEBT : next;
    } while (!__atomic_compare_exchange_n(&shared->credit, &seen, next, false, __ATOMIC_SEQ_CST,
                                          __ATOMIC_SEQ_CST));
}

/* The part of an interval that nobody was charged for; both times are the host's. */
static uint64_t claim(struct vgpu_budget *shared, uint64_t from, uint64_t to)
{
    uint64_t seen = SHARED_READ(shared->busy_until), start;
    do {
        /* A time far ahead is nonsense. */
        start = seen > from && seen < to + NONSENSE * SECOND ? seen : from;
        if (start >= to)
            return 0;
    } while (!__atomic_compare_exchange_n(&shared->busy_until, &seen, to, false, __ATOMIC_SEQ_CST,
                                          __ATOMIC_SEQ_CST));
    return to - start;
}

static void pay(struct vgpu_budget *shared, uint32_t cores, uint64_t time)
{
    if (!time)
        return;
    SHARED_ADD(shared->charged, time);
    if (cores)
        add_credit(shared, -(int64_t)time, LEDGER_DEBT);
}

/* Since when any process of the slice has had unfinished work, on the host's clock; UINT64_MAX: none has. */
static uint64_t earliest(const struct budget *budget)
{
    uint64_t first = SHARED_READ(budget->own->since);
    first = first ? first : UINT64_MAX;
    for (uint32_t i = 0; budget->others && i < budget->slots; i++) {
        uint64_t since = SHARED_READ(budget->others[i].since);
        if (since && since < first)
            first = since;
    }
    return first;
}

static uint64_t seen_at(const struct budget *budget, uint64_t host)
{
    return (host & ~VGPU_INTERVAL_STALLED) | (budget->stalled ? VGPU_INTERVAL_STALLED : 0);
}

void budget_begin(struct budget *budget, uint64_t now)
{
    uint64_t host = clock_of_host(now);
    host += !host; /* 0: there is no interval */
    __atomic_store_n(&budget->own->seen, seen_at(budget, host), __ATOMIC_RELAXED);
    __atomic_store_n(&budget->own->since, host, __ATOMIC_RELEASE);
}

uint32_t budget_others(const struct budget *budget, uint64_t now)
{
    uint64_t host = clock_of_host(now);
    uint32_t count = 0;
    for (uint32_t i = 0; budget->others && i < budget->slots; i++) {
        uint64_t seen = SHARED_READ(budget->others[i].seen);
        bool lives = seen + ALIVE_NS > host && seen < host + ALIVE_NS && !(seen & VGPU_INTERVAL_STALLED);
        count += lives && &budget->others[i] != budget->own && SHARED_READ(budget->others[i].since);
    }
    return count;
}

void budget_charge(struct budget *budget, uint32_t cores, uint64_t now)
{
    uint64_t host = clock_of_host(now);
    if (SHARED_READ(budget->own->since)) {
        SHARED_WRITE(budget->own->seen, seen_at(budget, host));
        /* The clock was set back: nothing would be charged until it is there again, or the device is idle. */
        if (SHARED_READ(budget->own->since) > host + SECOND)
            SHARED_WRITE(budget->own->since, host);
    }
    uint64_t first = earliest(budget);
    if (first < host)
        pay(budget->shared, cores, claim(budget->shared, first, host));
}

void budget_spend(struct budget *budget, uint32_t cores, uint64_t time)
{
    pay(budget->shared, cores, time);
}

void budget_refund(struct budget *budget, uint32_t cores, uint64_t time)
{
    if (!time)
        return;
    SHARED_ADD(budget->shared->charged, -time);
    if (cores)
        add_credit(budget->shared, (int64_t)time, LEDGER_DEBT);
}

void budget_end(struct budget *budget, uint32_t cores, uint64_t end, uint64_t now)
{
    struct vgpu_budget *shared = budget->shared;
    uint64_t behind = now - end, since = SHARED_READ(budget->own->since);
    uint64_t last = clock_of_host(now) - behind, seen = SHARED_READ(shared->busy_until);
    if (!since)
        return;
    if (last < since)
        last = since;
    __atomic_store_n(&budget->own->since, 0, __ATOMIC_RELEASE);
    if (seen <= last) {
        pay(shared, cores, claim(shared, since, last));
        return;
    }
    /* Who charged this up to now, since it was not known to have ended; others may have been busy then. */
    if (seen - last < LEDGER_DEBT && earliest(budget) >= seen &&
        __atomic_compare_exchange_n(&shared->busy_until, &seen, last, false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST))
        budget_refund(budget, cores, seen - last);
}

int64_t budget_refill(struct budget *budget, uint32_t cores, uint64_t now, uint64_t saved)
{
    struct vgpu_budget *shared = budget->shared;
    int64_t most = (int64_t)(saved / 100 * cores);
    uint64_t host = clock_of_host(now), last = SHARED_READ(shared->refilled);
    host += !host; /* 0: it was never refilled */
    budget_charge(budget, cores, now);
    /* 0: this is the first time. Another process, or processor, may be a little ahead. */
    uint64_t passed = !last ? saved : host > last ? host - last : last - host < (uint64_t)SECOND ? 0 : saved;
    if (passed > (uint64_t)(LEDGER_DEBT / SECOND * 100 * SECOND))
        passed = (uint64_t)(LEDGER_DEBT / SECOND * 100 * SECOND);
    uint64_t rest = passed % 100; /* for the next look: many threads may look each 50 ns */
    /* Whoever moves the time adds the credit. */
    if (passed > rest && __atomic_compare_exchange_n(&shared->refilled, &last, host - rest, false,
                                                     __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        add_credit(shared, (int64_t)(passed / 100 * cores), most);
    return SHARED_READ(shared->credit);
}

/* A stopped process says nothing while its work runs. One that was killed said nothing either, if the next one of its
 * slice came an hour later. Nobody can tell which. So a slice pays for SILENT of that time. If that may have been too
 * little, it pays for twice as much the next time, until all that it may have had is a hundredth of the time since. */
static uint64_t most_silent(const struct vgpu_budget *shared, uint64_t host)
{
    uint64_t doubts = host < SHARED_READ(shared->doubtful) ? SHARED_READ(shared->doubts) : 0;
    return (uint64_t)SILENT_NS << (doubts < DOUBTS ? doubts : DOUBTS);
}

static void doubt(struct vgpu_budget *shared, uint64_t seen, uint64_t host, uint64_t beyond)
{
    uint64_t until = SHARED_READ(shared->doubtful);
    bool doubted = host < until;
    uint64_t doubts = doubted ? SHARED_READ(shared->doubts) : 0, from = doubted ? until : host;
    if (doubted && seen <= SHARED_READ(shared->doubted))
        return; /* it ended with another one that was in doubt */
    uint64_t ahead = (beyond < SILENT_MOST ? beyond : SILENT_MOST) * 100;
    SHARED_WRITE(shared->doubts, doubts < DOUBTS ? doubts + 1 : DOUBTS);
    SHARED_WRITE(shared->doubted, host);
    SHARED_WRITE(shared->doubtful, from - host < DOUBT_MOST ? from + ahead : host + DOUBT_MOST);
}

void budget_bury(struct vgpu_budget *shared, struct vgpu_interval *interval, uint32_t cores, uint64_t now)
{
    uint64_t since = SHARED_READ(interval->since), seen = SHARED_READ(interval->seen);
    /* By who does not know the time: never less than is due. */
    uint64_t host = clock_is_known() ? clock_of_host(now) : seen + ALIVE_NS;
    SHARED_WRITE(interval->since, 0);
    if (!since || since > host)
        return;
    uint64_t spoken = seen + ALIVE_NS, end = spoken + most_silent(shared, host);
    if (spoken <= since || spoken >= host) {
        pay(shared, cores, claim(shared, since, host));
        return;
    }
    pay(shared, cores, claim(shared, since, spoken));
    SHARED_ADD(shared->silent, claim(shared, spoken, end < host ? end : host));
    if (end < host)
        doubt(shared, seen, host, host - end);
}

void budget_settle(struct budget *budget, uint32_t cores, bool watched)
{
    uint64_t silent = SHARED_READ(budget->shared->silent);
    if (silent &&
        __atomic_compare_exchange_n(&budget->shared->silent, &silent, 0, false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST) &&
        !watched)
        pay(budget->shared, cores, silent < LEDGER_DEBT ? silent : 0); /* more is nonsense */
}

uint32_t budget_queue(struct budget *budget)
{
    return SHARED_ADD(budget->shared->ticket, 1);
}

bool budget_is_queued(struct budget *budget)
{
    return SHARED_READ(budget->shared->ticket) != SHARED_READ(budget->shared->served);
}

bool budget_is_turn(struct budget *budget, uint32_t ticket)
{
    int32_t distance = (int32_t)(ticket - SHARED_READ(budget->shared->served));
    return distance <= 0 || distance > CROWD;
}

void budget_leave(struct budget *budget, uint32_t ticket)
{
    struct vgpu_budget *shared = budget->shared;
    uint32_t seen = SHARED_READ(shared->served), next = ticket + 1;
    while ((int32_t)(next - seen) > 0 || (int32_t)(seen - next) > CROWD)
        if (__atomic_compare_exchange_n(&shared->served, &seen, next, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST))
            break;
    if (SHARED_READ(shared->ticket) != next)
        budget_wake(budget);
}

void budget_wake(struct budget *budget)
{
    syscall(SYS_futex, &budget->shared->served, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void budget_await(struct budget *budget, uint64_t ns)
{
    struct timespec timeout = {.tv_nsec = (long)(ns < SECOND ? ns : SECOND - 1)};
    uint32_t served = SHARED_READ(budget->shared->served);
    /* An error other than these is of a file that was cut short. */
    if (syscall(SYS_futex, &budget->shared->served, FUTEX_WAIT, served, &timeout, NULL, 0) != 0 &&
        errno != ETIMEDOUT && errno != EAGAIN && errno != EINTR)
        syscall(SYS_nanosleep, &timeout, NULL);
}
