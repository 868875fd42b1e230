#include "share.h"

#include "ledger.h"

#include <string.h>

static uint32_t used(const struct process *in)
{
    uint64_t count;
    if (!ledger_read(in, LEDGER_AT(head.shares_used), &count, sizeof(count)))
        return 0;
    return count < VGPU_SHARES ? (uint32_t)count : VGPU_SHARES;
}

static bool load(const struct process *in, uint32_t index, struct vgpu_share *out)
{
    return ledger_read(in, ledger_share_at(index), out, sizeof(*out));
}

static void store(const struct process *in, uint32_t index, const struct vgpu_share *share)
{
    ledger_write(in, ledger_share_at(index), share, sizeof(*share));
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
    struct vgpu_slot header;
    return share->owner == slot + 1 && ledger_read(in, ledger_slot_at(slot), &header, sizeof(header)) &&
           share->owner_generation == header.generation;
}

/* Another process that imports it and lives; VGPU_SLOTS: none. */
static uint32_t heir_of(const struct process *in, const struct vgpu_share *share, uint32_t but,
                        struct vgpu_slot *header)
{
    for (uint32_t slot = 0; slot < VGPU_SLOTS; slot++)
        if (slot != but && imports(share, slot) &&
            ledger_read(in, ledger_slot_at(slot), header, sizeof(*header)) && header->pid &&
            ledger_lives(in, slot))
            return slot;
    return VGPU_SLOTS;
}

/* Bytes that a slot has from the dead: more, or less. */
static void inherit(const struct process *in, uint32_t slot, uint32_t device, uint64_t more, uint64_t less)
{
    uint64_t at =
        ledger_amount_at((int)(device % VGPU_DEVICES), slot) + offsetof(struct vgpu_amount, inherited);
    uint64_t bytes;
    if (!ledger_read(in, at, &bytes, sizeof(bytes)))
        return;
    bytes = subtract_capped(add_capped(bytes, more), less);
    ledger_write(in, at, &bytes, sizeof(bytes));
    ledger_raise(in, LEDGER_AT(head.transfers));
}

/* The bytes appear with the heir; the caller takes them from where they were, and stores the share. False: there is no
 * heir. */
static bool bequeath(const struct process *in, struct vgpu_share *share, uint32_t from)
{
    struct vgpu_slot header;
    uint32_t heir = heir_of(in, share, from, &header);
    if (heir == VGPU_SLOTS || share->device >= VGPU_DEVICES) {
        memset(share, 0, sizeof(*share));
        return false;
    }
    inherit(in, heir, share->device, share->bytes, 0);
    set_import(share, heir, false);
    share->owner = heir + 1;
    share->owner_generation = header.generation;
    share->inherited = 1;
    return true;
}

static uint32_t find_free(const struct process *in)
{
    struct vgpu_share share;
    for (uint32_t i = 0; i < VGPU_SHARES; i++)
        if (load(in, i, &share) && !share.owner)
            return i;
    return VGPU_SHARES;
}

/* The driver gives a handle again once its memory is free: whoever has that open keeps the share, without the name. */
static void take_name(const struct process *in, const uint8_t handle[SHARE_HANDLE])
{
    uint32_t count = used(in);
    for (uint32_t i = 0; i < count; i++) {
        struct vgpu_share share;
        if (!load(in, i, &share) || !share.owner || memcmp(share.handle, handle, SHARE_HANDLE) != 0)
            continue;
        memset(share.handle, 0, SHARE_HANDLE);
        store(in, i, &share);
    }
}

/* Takes both locks, the second for one process at a time, with a slot of its own; false: none is held. */
static bool begin(struct process *in)
{
    if (!in)
        return false;
    lock_take(&in->account);
    if (ledger_enter(in) && ledger_await_byte(in, LEDGER_SHARES_BYTE))
        return true;
    lock_drop(&in->account);
    return false;
}

static void end(struct process *in)
{
    ledger_unlock_byte(in, LEDGER_SHARES_BYTE);
    lock_drop(&in->account);
}

uint64_t share_largest(void)
{
    struct process *in = process();
    uint64_t most = 0;
    if (!begin(in))
        return 0;
    uint32_t count = used(in);
    for (uint32_t i = 0; i < count; i++) {
        struct vgpu_share share;
        if (load(in, i, &share) && share.owner && share.bytes > most)
            most = share.bytes;
    }
    end(in);
    return most;
}

uint32_t share_export(const uint8_t handle[SHARE_HANDLE], int position, uint64_t bytes)
{
    struct process *in = process();
    if (position < 0 || position >= VGPU_DEVICES || !begin(in))
        return 0;
    take_name(in, handle);
    uint32_t found = find_free(in);
    if (found < VGPU_SHARES) {
        struct vgpu_share share = {.bytes = bytes,
                                   .device = (uint32_t)position,
                                   .owner = in->slot,
                                   .owner_generation = in->generation};
        uint64_t count = found + 1;
        memcpy(share.handle, handle, SHARE_HANDLE);
        store(in, found, &share);
        if (used(in) < count)
            ledger_write(in, LEDGER_AT(head.shares_used), &count, sizeof(count));
    }
    end(in);
    return found < VGPU_SHARES ? found + 1 : 0;
}

/* Likewise with a share that this process has to do with; false too where it has lost its slot. */
static bool begin_with(struct process *in, uint32_t number, struct vgpu_share *share)
{
    if (!number || number > VGPU_SHARES || !in || !in->slot || !begin(in))
        return false;
    if (load(in, number - 1, share))
        return true;
    end(in);
    return false;
}

bool share_give_up(uint32_t number)
{
    struct process *in = process();
    struct vgpu_share share;
    bool moved = false;
    if (!begin_with(in, number, &share))
        return false;
    if (owns(in, &share, in->slot - 1) && !share.inherited) {
        moved = bequeath(in, &share, in->slot - 1);
        store(in, number - 1, &share);
    }
    end(in);
    return moved;
}

uint32_t share_import(const uint8_t handle[SHARE_HANDLE], bool foreign)
{
    struct process *in = process();
    uint32_t found = 0;
    if (!begin(in))
        return 0;
    uint32_t own = in->slot - 1, count = used(in);
    for (uint32_t i = 0; i < count && !found; i++) {
        struct vgpu_share share;
        if (!load(in, i, &share) || !share.owner || memcmp(share.handle, handle, SHARE_HANDLE) != 0)
            continue;
        bool mine = owns(in, &share, own);
        if (foreign && (mine || imports(&share, own)))
            continue;
        if (!mine) {
            set_import(&share, own, true);
            store(in, i, &share);
        }
        found = i + 1;
    }
    end(in);
    return found;
}

uint32_t share_join(const uint8_t handle[SHARE_HANDLE], bool *again)
{
    uint32_t found = share_import(handle, true);
    *again = !found;
    return found ? found : share_import(handle, false);
}

void share_leave(uint32_t number)
{
    struct process *in = process();
    struct vgpu_share share;
    if (!begin_with(in, number, &share))
        return;
    uint32_t own = in->slot - 1;
    if (imports(&share, own)) {
        set_import(&share, own, false);
        store(in, number - 1, &share);
    } else if (owns(in, &share, own) && share.inherited) {
        uint32_t device = share.device;
        uint64_t bytes = share.bytes;
        bequeath(in, &share, own);
        store(in, number - 1, &share);
        inherit(in, own, device, 0, bytes);
    }
    end(in);
}

bool share_bury(struct process *in, uint32_t slot)
{
    uint32_t count = used(in);
    if (!count)
        return true;
    if (!ledger_await_byte(in, LEDGER_SHARES_BYTE))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        struct vgpu_share share;
        if (!load(in, i, &share) || !(share.owner == slot + 1 || imports(&share, slot)))
            continue;
        set_import(&share, slot, false);
        if (share.owner == slot + 1)
            bequeath(in, &share, slot);
        store(in, i, &share);
    }
    ledger_unlock_byte(in, LEDGER_SHARES_BYTE);
    return true;
}
