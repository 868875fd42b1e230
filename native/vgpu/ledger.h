/* The ledger's file, this process's slot in it, and the dead ones. The account lock is held. */
#ifndef NVC_VGPU_LEDGER_H
#define NVC_VGPU_LEDGER_H

#include "process.h"

/* Whether the ledger can be read at in->ledger. Needs no slot. */
bool ledger_open(struct process *in);

/* Likewise, and the process has a slot in it that shows what it owns. */
bool ledger_enter(struct process *in);

/* The own slot; after ledger_enter(). */
struct vgpu_slot *ledger_slot(const struct process *in);

/* Writes the process's own account of a device to its slot, if it has one. */
void ledger_publish(struct process *in, int position);

uint32_t ledger_high_water(const struct process *in);
bool ledger_lives(const struct process *in, uint32_t slot);

/* Zeroes the slots of the dead; true: there were some. */
bool ledger_reap(struct process *in);

/* Takes or gives back the lock on one byte; false: another has it. */
bool ledger_lock_byte(const struct process *in, uint32_t byte);
void ledger_unlock_byte(const struct process *in, uint32_t byte);

/* Fields that any process may write, at any time. */
#define SHARED_READ(field) __atomic_load_n(&(field), __ATOMIC_SEQ_CST)
#define SHARED_WRITE(field, value) __atomic_store_n(&(field), (value), __ATOMIC_SEQ_CST)
#define SHARED_ADD(field, value) __atomic_fetch_add(&(field), (value), __ATOMIC_SEQ_CST)

/* Never below zero, whatever a stranger wrote. */
static inline void shared_subtract(uint64_t *field, uint64_t value)
{
    uint64_t seen = SHARED_READ(*field);
    while (!__atomic_compare_exchange_n(field, &seen, seen > value ? seen - value : 0, false,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
}

static inline uint64_t add_capped(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

#endif
