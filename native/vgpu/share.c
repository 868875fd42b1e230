#include "share.h"

#include "ledger.h"

#include <string.h>

enum { LOCK_BYTE = VGPU_SLOTS, PATIENCE_MS = 20 };

/* All shares, one process at a time. It may be stopped while it has them, so nobody waits for long. */
static bool enter(const struct process *in)
{
    uint64_t deadline = 0;
    while (!ledger_lock_byte(in, LOCK_BYTE)) {
        uint64_t now = now_ns(CLOCK_MONOTONIC);
        if (!deadline)
            deadline = now + PATIENCE_MS * UINT64_C(1000000);
        if (now > deadline)
            return false;
        sleep_us(100);
    }
    return true;
}

static void leave(const struct process *in)
{
    ledger_unlock_byte(in, LOCK_BYTE);
}

static uint32_t used(const struct process *in)
{
    uint64_t count = SHARED_READ(in->ledger->shares_used);
    return count < VGPU_SHARES ? (uint32_t)count : VGPU_SHARES;
}

static bool imports(const struct vgpu_share *share, uint32_t slot)
{
    return share->importers[slot / 64] >> slot % 64 & 1;
}

static void set_import(struct vgpu_share *share, uint32_t slot, bool on)
{
    uint64_t bit = UINT64_C(1) << slot % 64;
    share->importers[slot / 64] =
        on ? share->importers[slot / 64] | bit : share->importers[slot / 64] & ~bit;
}

static bool owns(const struct process *in, const struct vgpu_share *share, uint32_t slot)
{
    return share->owner == slot + 1 &&
           share->owner_generation == SHARED_READ(in->ledger->slots[slot].generation);
}

/* Another process that imports it and lives; VGPU_SLOTS: none. */
static uint32_t heir_of(const struct process *in, const struct vgpu_share *share, uint32_t but)
{
    for (uint32_t slot = 0; slot < VGPU_SLOTS; slot++)
        if (slot != but && imports(share, slot) && SHARED_READ(in->ledger->slots[slot].pid) &&
            ledger_lives(in, slot))
            return slot;
    return VGPU_SLOTS;
}

/* The bytes appear with the heir; the caller takes them from where they were. False: there is no heir. */
static bool bequeath(struct process *in, struct vgpu_share *share, uint32_t from)
{
    uint32_t heir = heir_of(in, share, from);
    if (heir == VGPU_SLOTS || share->device >= VGPU_DEVICES) {
        memset(share, 0, sizeof(*share));
        return false;
    }
    struct vgpu_amount *amount = &in->ledger->slots[heir].amounts[share->device];
    SHARED_ADD(amount->inherited, share->bytes);
    SHARED_ADD(amount->changes, 1);
    SHARED_ADD(in->ledger->transfers, 1);
    set_import(share, heir, false);
    share->owner = heir + 1;
    share->owner_generation = SHARED_READ(in->ledger->slots[heir].generation);
    share->inherited = 1;
    return true;
}

uint32_t share_export(const uint8_t handle[SHARE_HANDLE], int position, uint64_t bytes)
{
    struct process *in = process();
    uint32_t found = 0;
    if (!in || position < 0 || position >= VGPU_DEVICES)
        return 0;
    lock_take(&in->account);
    if (ledger_enter(in) && enter(in)) {
        for (uint32_t i = 0; i < VGPU_SHARES && !found; i++) {
            struct vgpu_share *share = &in->ledger->shares[i];
            if (share->owner)
                continue;
            memset(share, 0, sizeof(*share));
            memcpy(share->handle, handle, SHARE_HANDLE);
            share->bytes = bytes;
            share->device = (uint32_t)position;
            share->owner = in->slot;
            share->owner_generation = SHARED_READ(ledger_slot(in)->generation);
            if (used(in) <= i)
                SHARED_WRITE(in->ledger->shares_used, i + 1);
            found = i + 1;
        }
        leave(in);
    }
    lock_drop(&in->account);
    return found;
}

bool share_give_up(uint32_t number)
{
    struct process *in = process();
    bool moved = false;
    if (!in || !number || number > VGPU_SHARES)
        return false;
    lock_take(&in->account);
    if (ledger_open(in) && in->slot && enter(in)) {
        struct vgpu_share *share = &in->ledger->shares[number - 1];
        if (owns(in, share, in->slot - 1) && !share->inherited)
            moved = bequeath(in, share, in->slot - 1);
        leave(in);
    }
    lock_drop(&in->account);
    return moved;
}

void share_end(uint32_t number)
{
    struct process *in = process();
    if (!in || !number || number > VGPU_SHARES)
        return;
    lock_take(&in->account);
    if (ledger_open(in) && in->slot && enter(in)) {
        struct vgpu_share *share = &in->ledger->shares[number - 1];
        if (owns(in, share, in->slot - 1) && !share->inherited)
            memset(share, 0, sizeof(*share));
        leave(in);
    }
    lock_drop(&in->account);
}

uint32_t share_import(const uint8_t handle[SHARE_HANDLE], bool foreign)
{
    struct process *in = process();
    uint32_t found = 0;
    if (!in)
        return 0;
    lock_take(&in->account);
    if (ledger_enter(in) && enter(in)) {
        uint32_t own = in->slot - 1, count = used(in);
        for (uint32_t i = 0; i < count && !found; i++) {
            struct vgpu_share *share = &in->ledger->shares[i];
            if (!share->owner || memcmp(share->handle, handle, SHARE_HANDLE) != 0 ||
                (foreign && (owns(in, share, own) || imports(share, own))))
                continue;
            if (!owns(in, share, own))
                set_import(share, own, true);
            found = i + 1;
        }
        leave(in);
    }
    lock_drop(&in->account);
    return found;
}

void share_leave(uint32_t number)
{
    struct process *in = process();
    if (!in || !number || number > VGPU_SHARES)
        return;
    lock_take(&in->account);
    if (ledger_open(in) && in->slot && enter(in)) {
        struct vgpu_share *share = &in->ledger->shares[number - 1];
        uint32_t own = in->slot - 1;
        if (imports(share, own)) {
            set_import(share, own, false);
        } else if (owns(in, share, own) && share->inherited) {
            struct vgpu_amount *amount = &ledger_slot(in)->amounts[share->device % VGPU_DEVICES];
            uint64_t bytes = share->bytes;
            bequeath(in, share, own);
            shared_subtract(&amount->inherited, bytes);
            SHARED_ADD(amount->changes, 1);
        }
        leave(in);
    }
    lock_drop(&in->account);
}

bool share_bury(struct process *in, uint32_t slot)
{
    uint32_t count = used(in);
    if (!count)
        return true;
    if (!enter(in))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        struct vgpu_share *share = &in->ledger->shares[i];
        set_import(share, slot, false);
        if (share->owner == slot + 1)
            bequeath(in, share, slot);
    }
    leave(in);
    return true;
}
