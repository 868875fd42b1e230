/* The GPU time of one device that all processes of the container share, in the ledger. Any of them may be killed at any
 * moment, and any may write nonsense there: what is read is bounded, and no lock is held. Times are nanoseconds. */
#ifndef NVC_VGPU_BUDGET_H
#define NVC_VGPU_BUDGET_H

#include "process.h"

/* Nanoseconds. Between two turns that nvcd grants as much as BUDGET_TURNS may pass. */
enum { BUDGET_PERIOD = 20000000, BUDGET_TURNS = 400000000, BUDGET_DRAW = 500000 };

/* The shared one of a device, or `own`, this process's, where the ledger cannot be read. */
struct vgpu_budget *budget_open(int position, struct vgpu_budget *own);

/* Adds what time has brought, at `cores` percent. Returns the credit. */
int64_t budget_refill(struct vgpu_budget *budget, uint32_t cores, uint64_t now, int64_t saved);

/* Takes up to `wanted`, and no more than there is. */
int64_t budget_draw(struct vgpu_budget *budget, int64_t wanted);

/* Takes GPU time, into debt; less than 0 gives it back. */
void budget_pay(struct vgpu_budget *budget, uint32_t cores, int64_t time);

/* The device was busy from `start` to `end`, for work that took at most `wanted` of it. Returns for how much of that
 * nobody has been charged yet. */
uint64_t budget_cover(struct vgpu_budget *budget, uint64_t start, uint64_t end, uint64_t wanted);

/* Who waits for credit does so in order. */
uint32_t budget_queue(struct vgpu_budget *budget);
bool budget_is_queued(struct vgpu_budget *budget); /* somebody waits */
bool budget_is_turn(struct vgpu_budget *budget, uint32_t ticket);
void budget_leave(struct vgpu_budget *budget, uint32_t ticket); /* the turn is over, the next one's begins */
void budget_await(struct vgpu_budget *budget, uint64_t ns);     /* somebody's turn ends, or time passes */

#endif
