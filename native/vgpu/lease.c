/* What launches ask of the lease. Whoever launches says WANT itself, and waits on a word for each device, which the thread
 * that reads nvcd's answers changes (lease_thread.c). */
#include "lease_thread.h"

#include "account.h"
#include "channel.h"
#include "clock.h"
#include "thread.h"

enum {
    RETRY_NS = 1000000000, /* between two attempts to reach nvcd */
    END_STEP_US = 100,
    END_STEPS = 1000,
    HANDOVER_NS = 1000000, /* what takes longer is none that was waited for */
    HEARD_PART = 4         /* until nvcd hears of the end passes such a part of what follows */
};

static void wake(struct lease *lease)
{
    syscall(SYS_futex, &lease->state, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

void lease_move(struct lease *lease, uint32_t state)
{
    atomic_store(&lease->state, state);
    if (state != WAITING && state != DRAINING)
        wake(lease);
}

void lease_part(struct process *in)
{
    atomic_store(&in->channel_retry, now_ns(CLOCK_MONOTONIC) + RETRY_NS);
    channel_close(in);
    for (int i = 0; i < VGPU_DEVICES; i++)
        lease_move(&in->leases[i], UNASKED);
}

static bool is_connected(const struct process *in)
{
    return atomic_load_explicit(&in->channel, memory_order_acquire) != 0;
}

/* Nobody's WANT overtakes this message, since it is DRAINING. */
bool lease_send_release(struct process *in, int position, uint64_t flags)
{
    struct lease *lease = &in->leases[position];
    uint64_t now = now_ns(CLOCK_MONOTONIC), used = meter_used(position, now);
    struct nvcd_message message = {.kind = NVCD_RELEASE,
                                   .round = lease->round,
                                   .a = used > lease->charged ? used - lease->charged : 0,
                                   .b = flags | lease->tail * NVCD_TAIL};
    memcpy(message.uuid, lease->uuid, sizeof(message.uuid));
    bool sent = channel_send(in, &message);
    lease->tail = 0;
    lease->left = flags & NVCD_RUNS ? now : 0;
    lease->doubts -= lease->doubts != 0;
    atomic_store(&lease->stuck, false);
    lease->stalled = false;
    if (lease->length)
        atomic_store(&lease->turned, now);
    lease_move(lease, flags & NVCD_ENOUGH ? UNASKED : WAITING);
    return sent;
}

bool lease_release(struct process *in, int position, uint64_t flags)
{
    struct lease *lease = &in->leases[position];
    lock_take(&lease->changing);
    bool sent = atomic_load(&lease->state) != DRAINING || lease_send_release(in, position, flags);
    lock_drop(&lease->changing);
    return sent;
}

bool lease_tell_stall(struct process *in, int position, bool stalled)
{
    struct lease *lease = &in->leases[position];
    struct nvcd_message message = {.kind = NVCD_STALL, .b = stalled};
    bool good = true;
    lock_take(&lease->changing);
    if (atomic_load(&lease->state) == DRAINING && lease->stalled != stalled) {
        message.round = lease->round;
        uint64_t used = stalled ? meter_charged(position) : meter_used(position, now_ns(CLOCK_MONOTONIC));
        message.a = used > lease->charged ? used - lease->charged : 0;
        memcpy(message.uuid, lease->uuid, sizeof(message.uuid));
        lease->stalled = stalled;
        good = channel_send(in, &message);
    }
    lock_drop(&lease->changing);
    return good;
}

extern int __cxa_atexit(void (*call)(void *), void *argument, void *library);

/* Before the driver's own handlers, which came before this one: no thread of ours is in the driver while it ends. A
 * thread that waits for one of the program's there is left behind. */
static void end(void *none)
{
    struct process *in = process();
    (void)none;
    if (!in)
        return;
    atomic_store(&in->ending, true);
    channel_end(in);
    for (int i = 0; i < END_STEPS && is_connected(in); i++)
        sleep_us(END_STEP_US);
}

static bool start(struct process *in)
{
    static _Atomic bool registered;
    if (!atomic_exchange(&registered, true))
        __cxa_atexit(end, NULL, NULL);
    return thread_start(lease_attend, in);
}

/* True: there is a connection, made by this call or before. */
static bool meet(struct process *in)
{
    uint64_t now = now_ns(CLOCK_MONOTONIC_COARSE);
    uint64_t retry = atomic_load_explicit(&in->channel_retry, memory_order_relaxed);
    if (is_connected(in))
        return true;
    if (atomic_load_explicit(&in->ending, memory_order_relaxed))
        return false;
    /* Whoever moves the time of the next attempt makes this one. */
    if (now < retry || !atomic_compare_exchange_strong(&in->channel_retry, &retry, now + RETRY_NS))
        return false;
    atomic_store(&in->channel_heard, now_ns(CLOCK_MONOTONIC));
    if (!channel_open(in))
        return false;
    if (start(in))
        return true;
    lease_part(in);
    return false;
}

static bool send_want(struct process *in, const struct lease *lease, uint32_t round)
{
    struct nvcd_message message = {.kind = NVCD_WANT, .round = round};
    memcpy(message.uuid, lease->uuid, sizeof(message.uuid));
    if (channel_send(in, &message))
        return true;
    channel_end(in);
    return false;
}

static bool ask(struct process *in, int position)
{
    struct lease *lease = &in->leases[position];
    struct vgpu_quota_device device;
    uint32_t unasked = UNASKED;
    if (!account_device(position, &device))
        return false;
    /* All threads write the same. */
    memcpy(lease->uuid, device.uuid, sizeof(lease->uuid));
    if (atomic_load(&lease->state) == UNASKED)
        atomic_store(&lease->asked, now_ns(CLOCK_MONOTONIC));
    if (!atomic_compare_exchange_strong(&lease->state, &unasked, WAITING))
        return true;
    return send_want(in, lease, 0);
}

void lease_tell_making(int position, bool begins)
{
    struct process *in = process();
    struct vgpu_quota_device device;
    if (!in || !lease_is_handed_out() || !account_device(position, &device))
        return;
    struct nvcd_message message = {.kind = NVCD_MAKING, .a = begins};
    memcpy(message.uuid, device.uuid, sizeof(message.uuid));
    if (!channel_send(in, &message))
        channel_end(in);
}

void lease_stuck(int position)
{
    struct process *in = process();
    struct lease *lease = &in->leases[position];
    if (atomic_load(&lease->state) != DRAINING || atomic_load(&lease->stuck))
        return;
    atomic_store(&lease->asked, now_ns(CLOCK_MONOTONIC));
    if (!atomic_exchange(&lease->stuck, true))
        send_want(in, lease, lease->round);
}

void lease_hand_back(int position)
{
    struct process *in = process();
    struct lease *lease = &in->leases[position];
    uint32_t state = GRANTED;
    if (atomic_load(&lease->waiters) || (!meter_is_idle(position) && !meter_is_stalled(position)))
        return;
    if (!atomic_compare_exchange_strong(&lease->state, &state, DRAINING) && state != DRAINING)
        return;
    bool good = true;
    if (meter_is_idle(position)) /* another thread may have launched meanwhile */
        good = lease_release(in, position, NVCD_ENOUGH);
    else if (meter_is_stalled(position))
        good = lease_tell_stall(in, position, true);
    if (!good)
        channel_end(in);
}

/* Steps are about as long as those before them in the turn. */
static bool is_over(const struct lease *lease, uint64_t now, uint32_t steps)
{
    uint64_t held = now > lease->granted ? now - lease->granted : 0;
    return lease->length && held + held / steps / 2 > lease->length;
}

void lease_stepped(int position, uint64_t now)
{
    struct process *in = process();
    struct lease *lease = &in->leases[position];
    uint32_t state = atomic_load(&lease->state);
    if (state == UNASKED) /* there is no turn */
        return;
    uint32_t steps = atomic_fetch_add(&lease->steps, 1) + 1;
    if (state == GRANTED && is_over(lease, now, steps ? steps : 1) &&
        atomic_compare_exchange_strong(&lease->state, &state, DRAINING))
        state = DRAINING;
    if (state == DRAINING && meter_is_idle(position) && !lease_release(in, position, 0))
        channel_end(in);
}

void lease_launched(int position)
{
    struct lease *lease = &process()->leases[position];
    if (!atomic_load_explicit(&lease->fresh, memory_order_relaxed) || !atomic_exchange(&lease->fresh, false))
        return;
    uint64_t now = clock_of_host(now_ns(CLOCK_MONOTONIC)), before = atomic_load(&lease->handover);
    uint64_t took = now > lease->told ? now - lease->told : 0;
    took += took / HEARD_PART;
    if (took && took < HANDOVER_NS)
        atomic_store(&lease->handover, before ? (3 * before + took) / 4 : took);
}

bool lease_is_handed_out(void)
{
    struct process *in = process();
    return in && meet(in) && !atomic_load_explicit(&in->channel_doubted, memory_order_relaxed);
}

bool lease_is_watched(void)
{
    struct process *in = process();
    return in && is_connected(in) && !atomic_load_explicit(&in->channel_doubted, memory_order_relaxed);
}

bool lease_held(int position)
{
    struct process *in = process();
    if (!in)
        return true;
    uint32_t state = atomic_load_explicit(&in->leases[position].state, memory_order_acquire);
    if (state == GRANTED || state == FREE)
        return true;
    if (state == UNASKED)
        return !lease_is_handed_out() || !ask(in, position);
    return !is_connected(in);
}

bool lease_is_active(int position)
{
    struct process *in = process();
    return in && is_connected(in) && atomic_load(&in->leases[position].state) != UNASKED;
}

bool lease_is_unasked(int position)
{
    struct process *in = process();
    return in && atomic_load(&in->leases[position].state) == UNASKED && lease_is_handed_out();
}

bool lease_takes_turns(int position)
{
    struct process *in = process();
    uint32_t state = in ? atomic_load(&in->leases[position].state) : UNASKED;
    return state != UNASKED && state != FREE && is_connected(in);
}

bool lease_took_turns(int position, uint64_t now, uint64_t within)
{
    struct process *in = process();
    uint64_t turned = in ? atomic_load(&in->leases[position].turned) : 0;
    return lease_takes_turns(position) || (turned && now - turned < within);
}

uint64_t lease_half(int position)
{
    struct process *in = process();
    return in ? in->leases[position].length / 2 : 0;
}

void lease_wanted(int position, bool wanted)
{
    atomic_fetch_add(&process()->leases[position].waiters, wanted ? 1 : UINT32_MAX);
}

uint32_t lease_waiters(int position)
{
    return atomic_load_explicit(&process()->leases[position].waiters, memory_order_relaxed);
}

bool lease_await(int position, uint64_t until)
{
    struct process *in = process();
    struct lease *lease = &in->leases[position];
    bool held;
    while (!(held = lease_held(position))) {
        uint64_t now = now_ns(CLOCK_MONOTONIC);
        uint32_t state = atomic_load(&lease->state);
        if (now >= until)
            break;
        struct timespec timeout = {.tv_sec = (time_t)((until - now) / 1000000000),
                                   .tv_nsec = (long)((until - now) % 1000000000)};
        if (state == WAITING || state == DRAINING)
            syscall(SYS_futex, &lease->state, FUTEX_WAIT_PRIVATE, state, &timeout, NULL, 0);
    }
    return held;
}
