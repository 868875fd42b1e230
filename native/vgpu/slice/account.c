/* There is no total: a kill between two updates would leave it wrong. A request is shown first, then all slots are
 * added up; so of two requests that together are too much, at least one sees the other. */
#include "account.h"

#include "ledger.h"
#include "quota.h"

#include <string.h>

enum { PATIENCE_MS = 500, PAUSE_US = 50, SNAPSHOTS = 16, REAP_EVERY_MS = 50 };

struct sum {
    uint64_t all, tentative;
    uint64_t stamp; /* equal in two sums in a row: nothing changed between them */
    bool whole;     /* no slot came into use meanwhile, and no bytes moved from one to another */
    bool lower;     /* a lower slot asks for memory too */
};

/* All there can be, where the ledger was cut short meanwhile. The head was read before what this process asks for was
 * shown: whoever is in a slot that it does not know of yet sees that. */
static struct sum add_up(struct process *in, int position)
{
    uint32_t high = ledger_high_water(in), slot = in->slot;
    uint64_t transfers = in->head.transfers;
    struct sum sum = {0};
    atomic_thread_fence(memory_order_seq_cst); /* between what we have written and what others have */
    if (!ledger_read(in, ledger_amount_at(position, 0), in->sums, high * sizeof(in->sums[0])) ||
        !ledger_open(in) || in->slot != slot)
        return (struct sum){.all = UINT64_MAX, .whole = true};
    sum.whole = ledger_high_water(in) == high && in->head.transfers == transfers;
    sum.stamp = transfers;
    for (uint32_t i = 0; i < high; i++) {
        const struct vgpu_amount *amount = &in->sums[i];
        sum.stamp += amount->changes;
        sum.tentative = add_capped(sum.tentative, amount->tentative);
        sum.all = add_capped(sum.all, add_capped(amount->taken, amount->inherited));
        sum.lower |= amount->tentative && i + 1 < in->slot;
    }
    return sum;
}

/* A sum in which no bytes were counted both where they left and where they went, and none was missed. */
static struct sum add_up_exactly(struct process *in, int position)
{
    struct sum sum = add_up(in, position);
    for (int attempt = 0; attempt < SNAPSHOTS; attempt++) {
        struct sum again = add_up(in, position);
        bool same = again.whole && again.stamp == sum.stamp;
        sum = again;
        if (same)
            break;
    }
    return sum;
}

static bool is_position(int position)
{
    return position >= 0 && position < VGPU_DEVICES;
}

static uint64_t limit_of(const struct process *in, int position)
{
    const struct vgpu_quota_device *device = &in->quota.devices[position];
    if ((uint32_t)position >= in->quota.device_count)
        return 0;
    if (device->memory_limit == VGPU_NO_LIMIT)
        return VGPU_NO_LIMIT;
    return device->memory_limit > device->correction ? device->memory_limit - device->correction : 0;
}

int account_position(const uint8_t uuid[16])
{
    struct process *in = process();
    int found = NO_POSITION;
    if (!in)
        return NO_POSITION;
    lock_take(&in->account);
    if (quota_read(in))
        for (uint32_t i = 0; i < in->quota.device_count && found == NO_POSITION; i++)
            if (memcmp(in->quota.devices[i].uuid, uuid, 16) == 0)
                found = (int)i;
    lock_drop(&in->account);
    return found;
}

bool account_device(int position, struct vgpu_quota_device *out)
{
    struct process *in = process();
    if (!in || !is_position(position))
        return false;
    lock_take(&in->account);
    bool good = quota_read(in) && (uint32_t)position < in->quota.device_count;
    if (good)
        *out = in->quota.devices[position];
    if (good)
        quota_refresh(in, position, out);
    lock_drop(&in->account);
    return good;
}

bool account_is_suspended(void)
{
    struct process *in = process();
    if (!in)
        return false;
    lock_take(&in->account);
    bool suspended = quota_read(in) && in->quota.flags & VGPU_QUOTA_SUSPENDED;
    lock_drop(&in->account);
    return suspended;
}

uint64_t account_swap(bool *swaps)
{
    struct process *in = process();
    lock_take(&in->account);
    *swaps = quota_read(in) && in->quota.flags & VGPU_QUOTA_SWAPS;
    uint64_t word = in->quota_good ? in->quota.swap : 0;
    lock_drop(&in->account);
    return word;
}

void account_swapped(const struct vgpu_slot *answer)
{
    struct process *in = process();
    size_t first = offsetof(struct vgpu_slot, swapped), next = offsetof(struct vgpu_slot, swap_error);
    lock_take(&in->account);
    if (ledger_enter(in)) { /* whoever sees the first word sees the others */
        uint64_t at = ledger_slot_at(in->slot - 1);
        ledger_write(in, at + next, (const char *)answer + next, sizeof(*answer) - next);
        ledger_write(in, at + first, &answer->swapped, sizeof(answer->swapped));
    }
    lock_drop(&in->account);
}

static bool set_tentative(struct process *in, int position, uint64_t bytes)
{
    in->own[position].tentative = bytes;
    return ledger_publish(in, position);
}

/* `shown`: the request is among the process's tentative bytes already. */
static enum verdict try_once(struct process *in, int position, uint64_t bytes, bool *shown)
{
    struct own *own = &in->own[position];
    if (!quota_read(in) || !ledger_enter(in))
        return ACCOUNT_DENIED;
    uint64_t limit = limit_of(in, position);
    uint64_t others_here = own->tentative - (*shown ? bytes : 0);
    if (bytes > limit || (bytes && in->quota.devices[position].flags & VGPU_DEVICE_DENIED))
        return ACCOUNT_FULL;
    bool first = !*shown;
    *shown = true;
    if (first && !set_tentative(in, position, own->tentative + bytes))
        return ACCOUNT_DENIED;
    if (limit == VGPU_NO_LIMIT)
        return ACCOUNT_GRANTED;
    struct sum sum = add_up(in, position);
    if (sum.all <= limit && sum.whole)
        return ACCOUNT_GRANTED;
    sum = add_up_exactly(in, position);
    if (sum.all <= limit && sum.whole)
        return ACCOUNT_GRANTED;
    if (sum.all == UINT64_MAX || add_capped(subtract_capped(sum.all, sum.tentative), bytes) > limit)
        return ACCOUNT_FULL;
    /* Only what others ask for is in the way. The lowest slot keeps its place, all others make way. */
    if (sum.lower || others_here) {
        set_tentative(in, position, own->tentative - bytes);
        *shown = false;
    }
    return ACCOUNT_WAIT;
}

enum verdict account_reserve(int position, uint64_t bytes)
{
    struct process *in = process();
    uint64_t deadline = 0;
    bool shown = false;
    if (!in || !is_position(position))
        return ACCOUNT_DENIED;
    for (;;) {
        lock_take(&in->account);
        enum verdict verdict = try_once(in, position, bytes, &shown);
        /* Whoever is in the way may be dead. */
        if ((verdict == ACCOUNT_FULL || verdict == ACCOUNT_WAIT) && in->slot && ledger_reap(in))
            verdict = try_once(in, position, bytes, &shown);
        uint64_t now = now_ns(CLOCK_MONOTONIC);
        if (!deadline)
            deadline = now + PATIENCE_MS * UINT64_C(1000000);
        if (verdict == ACCOUNT_WAIT && now > deadline)
            verdict = ACCOUNT_FULL; /* it waits for the driver, or is stopped */
        if (shown && (verdict == ACCOUNT_FULL || verdict == ACCOUNT_DENIED))
            set_tentative(in, position, in->own[position].tentative - bytes);
        lock_drop(&in->account);
        if (verdict != ACCOUNT_WAIT)
            return verdict;
        sleep_us(PAUSE_US);
    }
}

static void change(int position, uint64_t reserved, uint64_t more, uint64_t less)
{
    struct process *in = process();
    if (!in || !is_position(position))
        return;
    lock_take(&in->account);
    struct own *own = &in->own[position];
    own->tentative = subtract_capped(own->tentative, reserved);
    own->committed = subtract_capped(add_capped(own->committed, more), less);
    if (ledger_enter(in))
        ledger_publish(in, position);
    lock_drop(&in->account);
}

void account_settle(int position, uint64_t reserved, uint64_t taken)
{
    change(position, reserved, taken, 0);
}

#define CHANGE(name, reserved, more, less)                                                                  \
    void name(int position, uint64_t bytes)                                                                 \
    {                                                                                                       \
        change(position, reserved, more, less);                                                             \
    }

CHANGE(account_commit, bytes, bytes, 0)
CHANGE(account_withdraw, bytes, 0, 0)
CHANGE(account_release, 0, 0, bytes)
CHANGE(account_force, 0, bytes, 0)

uint64_t account_count(int position, size_t field)
{
    struct process *in = process();
    uint64_t at = LEDGER_AT(budgets) + (uint64_t)position * sizeof(struct vgpu_budget) + field, value = 0;
    if (!in || !is_position(position))
        return 0;
    lock_take(&in->account);
    if (ledger_enter(in)) {
        bool alone = ledger_await_byte(in, LEDGER_HEAD_BYTE);
        value = ledger_raise(in, at);
        if (alone)
            ledger_unlock_byte(in, LEDGER_HEAD_BYTE);
    }
    lock_drop(&in->account);
    return value;
}

static void reap_sometimes(struct process *in)
{
    if (now_ns(CLOCK_MONOTONIC_COARSE) - in->reaped_at > REAP_EVERY_MS * UINT64_C(1000000))
        ledger_reap(in);
}

bool account_view(int position, struct account_view *out)
{
    struct process *in = process();
    if (!in || !is_position(position))
        return false;
    lock_take(&in->account);
    bool good = quota_read(in) && (uint32_t)position < in->quota.device_count && ledger_open(in);
    if (good) {
        reap_sometimes(in);
        out->limit = in->quota.devices[position].memory_limit;
        struct sum sum = add_up_exactly(in, position);
        out->used =
            add_capped(subtract_capped(sum.all, sum.tentative), in->quota.devices[position].correction);
    }
    lock_drop(&in->account);
    return good;
}

uint32_t account_processes(int position, struct account_process out[VGPU_SLOTS])
{
    struct process *in = process();
    uint32_t count = 0;
    if (!in || !is_position(position))
        return 0;
    lock_take(&in->account);
    uint32_t high = 0;
    if (ledger_open(in)) {
        reap_sometimes(in);
        high = ledger_high_water(in);
    }
    for (uint32_t i = 0; i < high; i++) {
        struct vgpu_amount amount;
        uint32_t pid, at = 0;
        if (!ledger_read(in, ledger_slot_at(i), &pid, sizeof(pid)) ||
            !ledger_read(in, ledger_amount_at(position, i), &amount, sizeof(amount)))
            break;
        uint64_t bytes = add_capped(subtract_capped(amount.taken, amount.tentative), amount.inherited);
        if (!pid || !bytes || !ledger_lives(in, i))
            continue;
        while (at < count && out[at].pid != pid)
            at++; /* a process that loaded the shim twice has two slots */
        if (at == count)
            out[count++] = (struct account_process){.pid = pid};
        out[at].bytes = add_capped(out[at].bytes, bytes);
    }
    lock_drop(&in->account);
    return count;
}
