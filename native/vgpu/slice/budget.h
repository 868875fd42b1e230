/* The GPU time of one device that all processes of the slice share, in the ledger. Any of them may be killed at any moment, so
 * no lock is held. Times are nanoseconds, `now` of this process's CLOCK_MONOTONIC. */
#pragma once

#include "process/process.h"

/* Of a device, in the ledger; of this process alone where there is none. */
struct vgpu_budget *budget_of(int position, uint64_t now);

/* Charges work of this process: `time` nanoseconds that ended `ago` before now. Processes of one slice take turns, so what
 * others were charged since `*seen` is part of that time, except for what came after its end. It is charged once.
 * `*seen` becomes the total. */
void budget_charge(struct vgpu_budget *budget, uint32_t cores, uint64_t time, uint64_t ago, uint64_t *seen);

/* Nothing is owed, and nothing saved up: until `host`, the host's CLOCK_MONOTONIC, time was kept from outside. */
void budget_begin(struct vgpu_budget *budget, uint64_t host);

/* Adds what time has brought at `cores` percent. Returns the credit, which is below zero for a debt. */
int64_t budget_refill(struct vgpu_budget *budget, uint32_t cores, uint64_t now);
