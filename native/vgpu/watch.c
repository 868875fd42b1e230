/* A thread of the shim's own that looks at unfinished work now and then, so that a program which asks nothing of the
 * driver is charged for little more than what it used, and one that is killed for little less. */
#include "meter.h"
#include "thread.h"

#include <sys/prctl.h>

enum { TICK_NS = 1000000, LONG_TICK_NS = 5000000, QUIET_TICKS = 20 };

/* True: there is unfinished work. */
static bool look(struct process *in)
{
    bool busy = false;
    for (int i = 0; i < VGPU_DEVICES; i++) {
        struct meter *meter = atomic_load_explicit(&in->meters[i], memory_order_acquire);
        uint64_t since = meter ? atomic_load(&meter->busy) : 0, now = now_ns(CLOCK_MONOTONIC);
        if (!since)
            continue;
        busy = true;
        /* What is shorter the program waits for, or asks about, by itself. */
        if (now - since >= TICK_NS && now - since < INT64_MAX &&
            now - atomic_load_explicit(&meter->looked, memory_order_relaxed) >= TICK_NS)
            meter_look(meter, now, 0);
    }
    return busy;
}

static void *watch(void *argument)
{
    struct process *in = argument;
    uint32_t quiet = 0, long_ticks = 0;
    prctl(PR_SET_NAME, "nvc-watch");
    while (!atomic_load(&in->ending)) {
        bool busy = look(in);
        quiet = busy ? 0 : quiet + 1;
        long_ticks = busy ? long_ticks + 1 : 0;
        if (quiet > QUIET_TICKS) {
            atomic_store(&in->watching, 1); /* asleep: watch_start() wakes it */
            if (!look(in))
                syscall(SYS_futex, &in->watching, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
            atomic_store(&in->watching, 2);
            quiet = 0;
        }
        struct timespec tick = {.tv_nsec = long_ticks > QUIET_TICKS ? LONG_TICK_NS : TICK_NS};
        syscall(SYS_nanosleep, &tick, NULL);
    }
    return NULL;
}

/* `watching`: 0 there is no thread, 1 it sleeps, 2 it looks. */
void watch_start(void)
{
    struct process *in = process();
    uint32_t seen = atomic_load_explicit(&in->watching, memory_order_relaxed);
    if (__builtin_expect(seen == 2, 1))
        return;
    if (seen == 1 && atomic_compare_exchange_strong(&in->watching, &seen, 2)) {
        syscall(SYS_futex, &in->watching, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
        return;
    }
    if (seen == 0 && atomic_compare_exchange_strong(&in->watching, &seen, 2) && !thread_start(watch, in))
        atomic_store(&in->watching, 0);
}
