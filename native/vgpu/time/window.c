#include "window.h"

#include "slice/account.h"
#include "slice/budget.h"
#include "process/log.h"

/* A window as one word of process.h; the lowest byte is the cap. */
enum { CORES = 0xff, KNOWN = 1 << 8, PAUSED = 1 << 9, UNKNOWN = 1 << 10, MEASURED = 1 << 11 };

enum { WINDOW_NS = 20000000 }; /* between two looks at the quota */

_Atomic bool window_closed;
_Atomic uint64_t window_due;

static uint64_t host_now(void)
{
    return clock_of_host(now_ns(CLOCK_MONOTONIC));
}

static uint32_t read_pace(uint64_t pace)
{
    uint32_t percent = (uint32_t)(pace & VGPU_PACE_PERCENT);
    if ((pace & ~VGPU_PACE_PERCENT) <= host_now())
        return 0;
    return MEASURED | (percent < 100 ? percent : 0);
}

/* Where the host's time is not known, nobody can tell, and nothing is let go for it. */
static bool is_kept(const struct vgpu_quota_device *device)
{
    return clock_is_known() && device->kept_until > host_now();
}

/* The processes of a slice share a budget: where their clocks do not agree, each look at one would add credit. */
static uint32_t read_cap(int position, uint32_t cores, bool kept)
{
    if (!clock_is_known()) {
        LOG_ONCE("this process's time namespace is not known: a slice with a cap needs /proc");
        return UNKNOWN;
    }
    if (kept)
        budget_begin(budget_of(position, now_ns(CLOCK_MONOTONIC)), host_now());
    return MEASURED | cores;
}

static uint32_t read_window(int position)
{
    struct vgpu_quota_device device;
    if (!account_device(position, &device))
        return KNOWN | UNKNOWN;
    bool kept = is_kept(&device);
    uint32_t word = KNOWN | (device.flags & VGPU_DEVICE_PAUSED ? PAUSED : 0);
    if (device.policy == VGPU_POLICY_CONCURRENT)
        word |= read_pace(device.pace);
    else if (device.policy != VGPU_POLICY_NATIVE && device.cores && device.cores < 100)
        word |= read_cap(position, device.cores, kept);
    return kept ? KNOWN : word;
}

/* The first launch on a device, and one each WINDOW_NS, looks at all that this process has launched on. */
static void look(struct process *in)
{
    bool closed = false;
    for (int i = 0; i < VGPU_DEVICES; i++) {
        if (!(atomic_load_explicit(&in->windows[i], memory_order_relaxed) & KNOWN))
            continue;
        uint32_t word = read_window(i);
        atomic_store_explicit(&in->windows[i], word, memory_order_relaxed);
        closed |= word != KNOWN;
    }
    atomic_store_explicit(&window_closed, closed, memory_order_relaxed);
}

struct window window_of(int position)
{
    struct process *in = process();
    if (!in || position < 0 || position >= VGPU_DEVICES)
        return (struct window){.unknown = true};
    uint64_t now = now_ns(CLOCK_MONOTONIC_COARSE), due = atomic_load(&window_due);
    bool known = atomic_load(&in->windows[position]) & KNOWN;
    if (!known)
        atomic_fetch_or(&in->windows[position], KNOWN);
    /* One thread looks; a time far ahead is of before a checkpoint. */
    if (!known || ((now >= due || due - now > 2 * WINDOW_NS) &&
                   atomic_compare_exchange_strong(&window_due, &due, now + WINDOW_NS)))
        look(in);
    uint32_t word = atomic_load(&in->windows[position]);
    return (struct window){word & CORES, word & PAUSED, word & MEASURED, word & UNKNOWN};
}
