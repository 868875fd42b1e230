#include "budget.h"

#include "ledger.h"

#define SECOND INT64_C(1000000000)
#define DEBT (60 * SECOND) /* the most that a slice can owe */

/* So much time that passes, SAVED_NS, brings credit that may be saved up. */
enum { FRESH_NS = 1000000, SKEW_NS = 1000000000, SAVED_NS = 100000000 };

/* The ledger may have been cut short, or replaced, since the last look. */
struct vgpu_budget *budget_of(int position, uint64_t now)
{
    static struct vgpu_budget none;
    struct process *in = process();
    if (!in)
        return &none;
    lock_take(&in->account);
    struct vgpu_budget *found = in->budgets[position];
    if (!found || now - in->budgets_at[position] >= FRESH_NS) {
        bool whole = ledger_enter(in) && ledger_is_whole(in);
        found = whole ? &in->ledger->budgets[position] : &in->own_budgets[position];
        in->budgets[position] = found;
        in->budgets_at[position] = now;
    }
    lock_drop(&in->account);
    return found;
}

static void add_credit(struct vgpu_budget *budget, int64_t add, int64_t most)
{
    int64_t seen = SHARED_READ(budget->credit), next;
    do {
        next = (seen < -DEBT ? -DEBT : seen > DEBT ? DEBT : seen) + add;
        next = next > most ? most : next < -DEBT ? -DEBT : next;
    } while (!__atomic_compare_exchange_n(&budget->credit, &seen, next, false, __ATOMIC_SEQ_CST,
                                          __ATOMIC_SEQ_CST));
}

void budget_charge(struct vgpu_budget *budget, uint32_t cores, uint64_t time, uint64_t ago, uint64_t *seen)
{
    uint64_t total = SHARED_READ(budget->charged), mine;
    do {
        uint64_t others = total - *seen < INT64_MAX ? total - *seen : 0;
        mine = subtract_capped(time, subtract_capped(others, ago));
    } while (!__atomic_compare_exchange_n(&budget->charged, &total, total + mine, false, __ATOMIC_SEQ_CST,
                                          __ATOMIC_SEQ_CST));
    *seen = total + mine;
    if (cores && mine)
        add_credit(budget, -(int64_t)least(mine, (uint64_t)DEBT), DEBT);
}

void budget_begin(struct vgpu_budget *budget, uint64_t host)
{
    SHARED_WRITE(budget->credit, 0);
    SHARED_WRITE(budget->refilled, host);
}

int64_t budget_refill(struct vgpu_budget *budget, uint32_t cores, uint64_t now)
{
    uint64_t host = clock_of_host(now), seen = SHARED_READ(budget->refilled);
    bool first = !seen || seen > host + SKEW_NS; /* a time far ahead is nonsense */
    if ((first || seen < host) && __atomic_compare_exchange_n(&budget->refilled, &seen, host, false,
                                                              __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        uint64_t passed = first ? 0 : least(host - seen, 6000 * (uint64_t)SECOND);
        add_credit(budget, (int64_t)(passed * cores / 100), SAVED_NS / 100 * (int64_t)cores);
    }
    return SHARED_READ(budget->credit);
}
