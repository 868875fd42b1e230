/* The GPU time of one device that all processes of the slice share, in the ledger. Any of them may be killed at any
 * moment, and any may write nonsense there: what is read is bounded, and no lock is held. Times are nanoseconds, on the
 * CLOCK_MONOTONIC of the calling process unless said otherwise.
 *
 * A process shows in the ledger since when it has had unfinished work on the device. The slice is charged for the union
 * of these intervals: whoever looks charges all of them up to that moment, before credit is added for the time. */
#ifndef NVC_VGPU_BUDGET_H
#define NVC_VGPU_BUDGET_H

#include "process.h"

/* How much credit may be saved up, as time that passes: between two turns that nvcd grants there may be BUDGET_TURNS. */
enum { BUDGET_PERIOD = 20000000, BUDGET_TURNS = 400000000 };

/* What this process sees of a device's time. Made by budget_open(), good for BUDGET_FRESH_NS. */
enum { BUDGET_FRESH_NS = 1000000 };

struct budget {
    struct vgpu_budget *shared;   /* in the ledger, or in `fallback` where there is none */
    struct vgpu_interval *own;    /* this process's interval, likewise */
    struct vgpu_interval *others; /* those of all slots of the slice; NULL: there is no ledger */
    uint32_t slots;               /* of these, so many may be in use */
    uint64_t opened;              /* when */
    bool stalled;                 /* the work of this process waits for something else than the device */
    struct {
        struct vgpu_budget budget;
        struct vgpu_interval interval;
    } fallback;
};

/* Finds the ledger's part for a device, again if it is old. */
void budget_reopen(struct budget *budget, int position, uint64_t now);

static inline void budget_open(struct budget *budget, int position, uint64_t now)
{
    if (!budget->shared || now - budget->opened >= BUDGET_FRESH_NS)
        budget_reopen(budget, position, now);
}

/* This process's work begins, at `now`. */
void budget_begin(struct budget *budget, uint64_t now);

/* How many other processes of the slice have unfinished work, and live, and it does not wait for something else. */
uint32_t budget_others(const struct budget *budget, uint64_t now);

/* It is not finished at `now`: charges for all of the slice up to then. */
void budget_charge(struct budget *budget, uint32_t cores, uint64_t now);

/* It had ended at `end`: charges what was not charged before, or gives back what was charged beyond it. */
void budget_end(struct budget *budget, uint32_t cores, uint64_t end, uint64_t now);

/* Charges for time in which no work of the slice is on the device, but others lose it by what the slice does. */
void budget_spend(struct budget *budget, uint32_t cores, uint64_t time);

/* Of what was charged, `time` was none of the device's. */
void budget_refund(struct budget *budget, uint32_t cores, uint64_t time);

/* Charges, then adds what time has brought at `cores` percent, of which `saved` may pile up. Returns the credit. */
int64_t budget_refill(struct budget *budget, uint32_t cores, uint64_t now, uint64_t saved);

/* The interval that a dead process left in its slot is charged for, and closed. */
void budget_bury(struct vgpu_budget *shared, struct vgpu_interval *interval, uint32_t cores, uint64_t now);

/* What the dead may have had in silence is paid for; by nvcd's account, if it `watched` them. */
void budget_settle(struct budget *budget, uint32_t cores, bool watched);

/* Who waits for credit does so in order. */
uint32_t budget_queue(struct budget *budget);
bool budget_is_queued(struct budget *budget); /* somebody waits */
bool budget_is_turn(struct budget *budget, uint32_t ticket);
void budget_leave(struct budget *budget, uint32_t ticket); /* the turn is over, the next one's begins */
void budget_await(struct budget *budget, uint64_t ns);     /* somebody's turn ends, or time passes, */
void budget_wake(struct budget *budget);                   /* or credit came otherwise */

#endif
