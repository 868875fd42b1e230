/* The thread that reads what nvcd says of turns, and gives them back. */
#include "lease_thread.h"

#include "account.h"
#include "channel.h"

#include <poll.h>
#include <sys/prctl.h>

enum {
    IDLE_NS = 1000000,       /* without work for so long, the lease is given back */
    DRAIN_STEP_NS = 20000,   /* between two looks at whether the last work has ended, */
    DRAIN_SPIN_NS = 100000,  /* but without a pause when it is to end within so long, */
    DRAIN_LOOKS_NS = 300000, /* and not for longer than that: guesses may be wrong */
    OVERRUN_NS = 5000000,    /* work may end so long after the lease, at most */
    HELD_STEP_NS = 500000,   /* between two looks at whether there is work */
    STALL_STEP_NS = 1000000, /* between two looks at whether what waits for the host runs */
    REST_STEP_NS = 1000000000,
    GUESSED_NS = 400000, /* before so long, an end is guessed well enough */
    WOKEN_NS = 20000,    /* that a sleep may be longer than it is to be */
    LATE_NS = 100000,    /* by so much more than expected a guess is wrong, */
    DOUBTS = 16,         /* and so many turns end with their work */
    AT_ONCE = 1          /* a step, of no time */
};

/* An nvcd that lets a launch wait so long without a word is not working: nothing is asked of it before it says something
 * on a new connection, which the kernel makes for one that is stopped too. */
#define SILENCE_NS UINT64_C(3000000000)

static int position_of(const struct process *in, const uint8_t uuid[16])
{
    static const uint8_t none[16];
    for (int i = 0; i < VGPU_DEVICES && memcmp(uuid, none, 16) != 0; i++)
        if (memcmp(in->leases[i].uuid, uuid, 16) == 0)
            return i;
    return NO_POSITION;
}

/* How long it went on what was running when the lease before was given back. What still runs does so under the new one. */
static uint64_t tail_of(const struct lease *lease, int position, uint64_t now)
{
    uint64_t end = lease->left && meter_is_idle(position) ? meter_last_work(position) : now;
    end = end < now ? end : now;
    return lease->left && end > lease->left ? end - lease->left : 0;
}

/* False: the connection is of no more use. */
static bool granted(struct process *in, int position, const struct nvcd_message *message)
{
    struct lease *lease = &in->leases[position];
    uint32_t unasked = UNASKED;
    uint64_t now = now_ns(CLOCK_MONOTONIC), tail = tail_of(lease, position, now);
    lock_take(&lease->changing);
    lease->round = message->round;
    lease->charged = meter_used(position, now);
    lease->left = 0;
    lease->tail = tail;
    if (tail > LATE_NS + 2 * atomic_load(&lease->handover))
        lease->doubts = DOUBTS;
    lease->spun = 0;
    lease->stalled = false;
    atomic_store(&lease->stuck, false);
    lease->granted = now;
    lease->length = message->a;
    lease->told = message->kind == NVCD_GRANT ? message->b : 0;
    atomic_store(&lease->steps, 0);
    atomic_store(&lease->fresh, lease->told && atomic_load(&lease->waiters));
    /* What was given back when this came, nvcd takes for ours, and for wanted. */
    bool back = atomic_compare_exchange_strong(&lease->state, &unasked, DRAINING);
    bool sent = !back || lease_send_release(in, position, NVCD_ENOUGH);
    if (!back)
        lease_move(lease, message->kind == NVCD_FREE ? FREE : GRANTED);
    lock_drop(&lease->changing);
    return sent;
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
    if (message->kind == NVCD_DROP && message->b)
        meter_refund(position, message->b);
    else if (message->kind == NVCD_DROP && (state == GRANTED || state == FREE) &&
             message->round == lease->round)
        lease_move(lease, DRAINING);
    return true;
}

/* Whoever waited for the lease, or for its work, needs a moment to launch once that has come. */
static bool is_quiet(const struct lease *lease, int position, uint64_t now)
{
    bool idle = meter_is_idle(position) || meter_is_stalled(position);
    uint64_t last = meter_last_work(position);
    if (last < lease->granted)
        last = lease->granted;
    return idle && now > last && now - last > IDLE_NS && !atomic_load(&lease->waiters);
}

/* Nothing ran under a lease that is over, nor is about to. It may be shorter than a process has to be quiet. */
static bool is_unused(const struct lease *lease, int position, uint64_t now)
{
    return lease->length && now - lease->granted >= lease->length &&
           meter_last_work(position) < lease->granted && !atomic_load(&lease->waiters);
}

/* Whether what runs will have ended when the next one begins, if the turn is given back now. What goes on for longer than
 * it was guessed to is waited for. */
static bool ends_in_time(const struct lease *lease, uint64_t left)
{
    return left && !lease->doubts && !atomic_load(&lease->stuck) && left <= atomic_load(&lease->handover);
}

/* Until the next look at what runs: half of what is left, since guesses are wrong in proportion. Being woken takes a good
 * part of what the device would be idle between two turns. */
static long drain_step(struct lease *lease, uint64_t left, uint64_t now)
{
    uint64_t early = lease->doubts ? 0 : atomic_load(&lease->handover), rest = left - early;
    if (early && left > early && rest < 2 * HELD_STEP_NS)
        return rest < 2 * WOKEN_NS ? AT_ONCE : (long)(rest < GUESSED_NS ? rest - WOKEN_NS : rest / 2);
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
    if (meter_is_stalled(position)) /* nothing runs, and what is launched joins it */
        return false;
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
            bool stalled = meter_is_stalled(i);
            uint64_t left = meter_left(i);
            bool early = !stalled && !lease->stalled && ends_in_time(lease, left);
            good = early ? lease_release(in, i, NVCD_RUNS) : lease_tell_stall(in, i, stalled);
            if (!early)
                step = stalled ? STALL_STEP_NS : drain_step(lease, left, now);
        } else if (state == DRAINING) {
            good = lease_release(in, i, quiet || is_unused(lease, i, now) ? NVCD_ENOUGH : 0);
        }
        state = atomic_load(&lease->state);
        if (state == GRANTED)
            step = next_look(lease, i, now);
        if (state == WAITING || (state == DRAINING && atomic_load(&lease->stuck))) {
            uint64_t heard = atomic_load(&in->channel_heard), asked = atomic_load(&lease->asked);
            heard = heard > asked ? heard : asked;
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

void *lease_attend(void *argument)
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
    lease_part(in);
    return NULL;
}
