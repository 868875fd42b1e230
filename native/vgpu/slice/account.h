/* The accounts of the container: what its processes together may take of a device, and have taken. A `position` is that
 * of a device in the quota. No function here calls the driver, and no lock is held when one returns. */
#pragma once

#include "process/process.h"

#define ROUND_UP(value, unit) (((value) + (unit)-1) / (unit) * (unit))

enum verdict {
    ACCOUNT_GRANTED,
    ACCOUNT_FULL,
    ACCOUNT_DENIED, /* there are no accounts to be had: the log says why */
    ACCOUNT_WAIT,   /* nobody is told so: only what others ask for is in the way */
};

enum { NO_POSITION = -1 };

/* NO_POSITION: not in the quota, or there is no quota. */
int account_position(const uint8_t uuid[16]);

/* Copies what the quota says; false: there is no quota. */
bool account_device(int position, struct vgpu_quota_device *out);

/* Whether the quota says that the memory of the slice's processes may be off their devices. */
bool account_is_suspended(void);

/* What the quota asks of the process's memory, see VGPU_SWAP_OUT; `swaps`: whether it is to move it at all. */
uint64_t account_swap(bool *swaps);

/* Shows the answer to that in the ledger: what comes behind the name in struct vgpu_slot. */
void account_swapped(const struct vgpu_slot *answer);

/* Asks for bytes: they count from now on, until one of the next three. */
enum verdict account_reserve(int position, uint64_t bytes);
void account_commit(int position, uint64_t bytes);   /* the driver gave them */
void account_withdraw(int position, uint64_t bytes); /* it did not */

/* Of what was asked for, the driver took so much. */
void account_settle(int position, uint64_t reserved, uint64_t taken);

/* Gives back what was committed. */
void account_release(int position, uint64_t bytes);

/* Commits what the driver has taken already, limit or not. */
void account_force(int position, uint64_t bytes);

/* Raises a count of struct vgpu_budget, at the offset `field`: what programs were refused, or ask for. Returns it; 0: there is no
 * ledger. Not by the mapping of budgets, which a ledger that is cut short does not outlive. */
uint64_t account_count(int position, size_t field);

struct account_view {
    uint64_t limit; /* VGPU_NO_LIMIT: none */
    uint64_t used;  /* by all living processes of the container, the host's correction included */
};

bool account_view(int position, struct account_view *out);

struct account_process {
    uint32_t pid;
    uint64_t bytes;
};

/* Living processes that hold memory of the device, each once; returns how many there are. */
uint32_t account_processes(int position, struct account_process out[VGPU_SLOTS]);
