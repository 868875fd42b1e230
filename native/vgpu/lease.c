/* The talk with nvcd. One thread, made with the connection, reads what nvcd says; whoever launches says WANT itself. Each
 * answer is a word for each device that launches look at, and wait on. */
#include "lease.h"

#include "account.h"
#include "channel.h"
#include "thread.h"

#include <poll.h>
#include <sys/prctl.h>

enum {
    RETRY_NS = 1000000000,   /* between two attempts to reach nvcd */
    IDLE_NS = 1000000,       /* without work for so long, the lease is given back */
    DRAIN_STEP_NS = 20000,   /* between two looks at whether the last work has ended, */
    DRAIN_SPIN_NS = 100000,  /* but without a pause when it is to end within so long, */
    DRAIN_LOOKS_NS = 300000, /* and not for longer than that: guesses may be wrong */
    OVERRUN_NS = 5000000,    /* work may end so long after the lease, at most */
    HELD_STEP_NS = 500000,   /* between two looks at whether there is work */
    REST_STEP_NS = 1000000000,
    END_STEP_US = 100,
    END_STEPS = 1000,
    AT_ONCE = 1 /* a step, of no time */
};

/* An nvcd that lets a launch wait so long without a word is not working: nothing is asked of it before it says something
 * on a new connection, which the kernel makes for one that is stopped too. */
#define SILENCE_NS UINT64_C(3000000000)

/* Of a device, for this process. */
enum {
    UNASKED, /* nvcd has not been told that the device is wanted */
    WAITING, /* it has */
    GRANTED,
    FREE,     /* granted, until somebody else wants it */
    DRAINING, /* over: what runs is to end first */
};

static void wake(struct lease *lease)
{
    syscall(SYS_futex, &lease->state, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void move(struct lease *lease, uint32_t state)
{
    atomic_store(&lease->state, state);
    if (state != WAITING && state != DRAINING)
        wake(lease);
}

/* Everybody goes on without nvcd; who launches in a second or later tries to reach it again. */
static void part(struct process *in)
{
    atomic_store(&in->channel_retry, now_ns(CLOCK_MONOTONIC) + RETRY_NS);
    channel_close(in);
    for (int i = 0; i < VGPU_DEVICES; i++)
        move(&in->leases[i], UNASKED);
}

static bool is_connected(const struct process *in)
{
    return atomic_load_explicit(&in->channel, memory_order_acquire) != 0;
}

static int position_of(const struct process *in, const uint8_t uuid[16])
{
    static const uint8_t none[16];
    for (int i = 0; i < VGPU_DEVICES && memcmp(uuid, none, 16) != 0; i++)
        if (memcmp(in->leases[i].uuid, uuid, 16) == 0)
            return i;
    return NO_POSITION;
}

/* The lease is DRAINING meanwhile, so that nobody's WANT overtakes this message. */
static bool release(struct process *in, int position, bool enough)
{
    struct lease *lease = &in->leases[position];
    struct nvcd_message message = {.kind = NVCD_RELEASE,
                                   .round = lease->round,
                                   .a = meter_charged(position) - lease->charged,
                                   .b = enough};
    memcpy(message.uuid, lease->uuid, sizeof(message.uuid));
    bool sent = channel_send(in, &message);
    move(lease, enough ? UNASKED : WAITING);
    return sent;
}

/* False: the connection is of no more use. */
static bool granted(struct process *in, int position, const struct nvcd_message *message)
{
    struct lease *lease = &in->leases[position];
    uint32_t unasked = UNASKED;
    lease->round = message->round;
    meter_refund(position, message->b);
    lease->charged = meter_charged(position);
    lease->spun = 0;
    lease->granted = now_ns(CLOCK_MONOTONIC);
    lease->length = message->a;
    /* What was given back when this came, nvcd takes for ours, and for wanted. */
    if (atomic_compare_exchange_strong(&lease->state, &unasked, DRAINING))
        return release(in, position, true);
    move(lease, message->kind == NVCD_FREE ? FREE : GRANTED);
    return true;
}

/* False: the connection is of no more use. */
static bool obey(struct process *in, const struct nvcd_message *message)
{
    int position = position_of(in, message->uuid);
    atomic_store(&in->channel_heard, now_ns(CLOCK_MONOTONIC));
    if (message->kind == NVCD_REFUSED)
        return false;
    atomic_store(&in->channel_doubted, false);
    if (position == NO_POSITION)
        return true; /* a welcome */
    struct lease *lease = &in->leases[position];
    uint32_t state = atomic_load(&lease->state);
    if (message->kind == NVCD_FREE || message->kind == NVCD_GRANT)
        return granted(in, position, message);
    if (message->kind == NVCD_DROP && (state == GRANTED || state == FREE) && message->round == lease->round)
        move(lease, DRAINING);
    return true;
}

/* Whoever waited for the lease, or for its work, needs a moment to launch once that has come. */
static bool is_quiet(const struct lease *lease, int position, uint64_t now)
{
    bool idle = meter_is_idle(position);
    uint64_t last = meter_last_work(position);
    if (last < lease->granted)
        last = lease->granted;
    return idle && now > last && now - last > IDLE_NS && !atomic_load(&lease->waiters);
}

/* Until the next look at what runs: half of what is left, since guesses are wrong in proportion. Being woken takes a good
 * part of what the device would be idle between two turns. */
static long drain_step(struct lease *lease, int position, uint64_t now)
{
    uint64_t left = meter_left(position);
    if (left < DRAIN_SPIN_NS && !lease->spun)
        lease->spun = now;
    if (lease->spun && now - lease->spun < DRAIN_LOOKS_NS)
        return AT_ONCE;
    return left < 2 * DRAIN_STEP_NS  ? DRAIN_STEP_NS
           : left < 2 * HELD_STEP_NS ? (long)(left / 2)
                                     : HELD_STEP_NS;
}

bool lease_is_full(int position)
{
    struct process *in = process();
    const struct lease *lease = &in->leases[position];
    uint64_t length = lease->length, late = length / 2 < OVERRUN_NS ? length / 2 : OVERRUN_NS;
    uint64_t granted = lease->granted, now = now_ns(CLOCK_MONOTONIC), next = meter_pace(position);
    return next > late && atomic_load(&lease->state) == GRANTED && meter_last_launch(position) > granted &&
           now > granted && now - granted + meter_left(position) + next > length + late;
}

/* How long until a lease that is held may be over, or unused. */
static long next_look(const struct lease *lease, int position, uint64_t now)
{
    uint64_t held = now - lease->granted, idle = meter_last_work(position) + IDLE_NS;
    uint64_t left = lease->length > held ? lease->length - held : 0;
    uint64_t next = idle > now && idle - now < IDLE_NS ? idle - now : HELD_STEP_NS;
    return (long)(next < left ? next : left) + 1;
}

/* Gives back what is drained or unused. Returns when to look again, in nanoseconds; 0: the connection is lost. */
static long look_after(struct process *in)
{
    long next = REST_STEP_NS;
    uint64_t now = now_ns(CLOCK_MONOTONIC);
    for (int i = 0; i < VGPU_DEVICES; i++) {
        struct lease *lease = &in->leases[i];
        uint32_t state = atomic_load_explicit(&lease->state, memory_order_relaxed);
        bool good = true;
        long step = REST_STEP_NS;
        uint64_t held = now - lease->granted;
        bool quiet = (state == GRANTED || state == DRAINING) && is_quiet(lease, i, now);
        if (state == GRANTED && (quiet || held >= lease->length || lease_is_full(i)) &&
            atomic_compare_exchange_strong(&lease->state, &state, DRAINING))
            state = DRAINING;
        if (state == DRAINING && !meter_is_idle(i)) {
            step = drain_step(lease, i, now);
        } else if (state == DRAINING) {
            good = release(in, i, quiet);
            state = atomic_load(&lease->state);
        }
        if (state == GRANTED)
            step = next_look(lease, i, now);
        if (state == WAITING) {
            uint64_t heard = atomic_load(&in->channel_heard);
            bool silent = now > heard && now - heard > SILENCE_NS;
            good &= !silent;
            if (silent)
                atomic_store(&in->channel_doubted, true);
        }
        if (!good)
            return 0;
        next = step < next ? step : next;
    }
    return next;
}

static void *attend(void *argument)
{
    struct process *in = argument;
    struct nvcd_message message;
    prctl(PR_SET_NAME, "nvc-lease");
    prctl(PR_SET_TIMERSLACK, 1); /* or each short sleep is 50 us longer */
    long step = HELD_STEP_NS;
    for (;;) {
        struct pollfd wait = {.fd = channel_descriptor(in), .events = POLLIN};
        struct timespec timeout = {.tv_sec = step / 1000000000, .tv_nsec = step % 1000000000};
        if (step == AT_ONCE)
            timeout.tv_nsec = 0;
        if (wait.fd < 0)
            break;
        if (ppoll(&wait, 1, &timeout, NULL) > 0) {
            int got = channel_receive(in, &message);
            if (got < 0 || (got > 0 && !obey(in, &message)))
                break;
            if (got > 0) {
                step = 0; /* there may be more; if not, it is to be acted upon now */
                continue;
            }
        }
        step = look_after(in);
        if (step == 0)
            break;
    }
    part(in);
    return NULL;
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
    return thread_start(attend, in);
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
    part(in);
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
    if (!atomic_compare_exchange_strong(&lease->state, &unasked, WAITING))
        return true;
    struct nvcd_message message = {.kind = NVCD_WANT};
    memcpy(message.uuid, device.uuid, sizeof(message.uuid));
    if (channel_send(in, &message))
        return true;
    channel_end(in);
    return false;
}

bool lease_is_handed_out(void)
{
    struct process *in = process();
    return in && meet(in) && !atomic_load_explicit(&in->channel_doubted, memory_order_relaxed);
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

bool lease_takes_turns(int position)
{
    struct process *in = process();
    uint32_t state = in ? atomic_load(&in->leases[position].state) : UNASKED;
    return state != UNASKED && state != FREE && is_connected(in);
}

void lease_wanted(int position, bool wanted)
{
    atomic_fetch_add(&process()->leases[position].waiters, wanted ? 1 : UINT32_MAX);
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
