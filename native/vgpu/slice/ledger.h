/* The ledger's file, this process's slot in it, and the dead ones. The account lock is held. */
#pragma once

#include "process/process.h"

#include <stddef.h>

/* Whether the ledger can be read; its head is in in->head then. Needs no slot. */
bool ledger_open(struct process *in);

/* Likewise, and the process has a slot in it that shows what it owns. */
bool ledger_enter(struct process *in);

/* Whether what is mapped of it, the budgets, may be touched now. */
bool ledger_is_whole(const struct process *in);

/* Parts of the file, whole: false where it is cut short, or full. */
bool ledger_read(const struct process *in, uint64_t offset, void *out, size_t size);
bool ledger_write(const struct process *in, uint64_t offset, const void *from, size_t size);

#define LEDGER_AT(member) offsetof(struct vgpu_ledger, member)

static inline uint64_t ledger_slot_at(uint32_t slot)
{
    return LEDGER_AT(slots) + slot * sizeof(struct vgpu_slot);
}

static inline uint64_t ledger_amount_at(int position, uint32_t slot)
{
    return LEDGER_AT(amounts) + ((uint64_t)position * VGPU_SLOTS + slot) * sizeof(struct vgpu_amount);
}

static inline uint64_t ledger_share_at(uint32_t share)
{
    return LEDGER_AT(shares) + share * sizeof(struct vgpu_share);
}

/* A word, raised by one, or 0: it cannot be. A lock is held that whoever else raises it takes. */
uint64_t ledger_raise(const struct process *in, uint64_t offset);

/* Writes the process's own account of a device to its slot, if it has one. */
bool ledger_publish(struct process *in, int position);

uint32_t ledger_high_water(const struct process *in);
bool ledger_lives(const struct process *in, uint32_t slot);

/* Zeroes the slots of the dead; true: there were some. */
bool ledger_reap(struct process *in);

/* Takes the lock on a byte, or gives it back. Waits only a little, as whoever has it may be stopped; false: it is not had. */
bool ledger_await_byte(const struct process *in, uint32_t byte);
void ledger_unlock_byte(const struct process *in, uint32_t byte);

/* Bytes behind those of the slots. */
enum { LEDGER_SHARES_BYTE = VGPU_SLOTS, LEDGER_HEAD_BYTE };

/* Fields that any process may write, at any time. */
#define SHARED_READ(field) __atomic_load_n(&(field), __ATOMIC_SEQ_CST)
#define SHARED_WRITE(field, value) __atomic_store_n(&(field), (value), __ATOMIC_SEQ_CST)
#define SHARED_ADD(field, value) __atomic_fetch_add(&(field), (value), __ATOMIC_SEQ_CST)

static inline uint64_t add_capped(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static inline uint64_t subtract_capped(uint64_t from, uint64_t bytes)
{
    return from > bytes ? from - bytes : 0;
}
