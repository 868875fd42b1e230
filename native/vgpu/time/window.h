/* What holds launches back on each device, as the quota says, known cheaply: while nothing does, a launch reads two words
 * and a coarse clock. */
#pragma once

#include "process/process.h"

struct window {
    uint32_t cores; /* percent; 0: no cap */
    bool paused;
    bool measured; /* time is measured, for a cap or for nvcd */
    bool unknown;  /* the quota cannot be read, or the host's time is not known */
};

extern _Atomic bool window_closed;
extern _Atomic uint64_t window_due; /* CLOCK_MONOTONIC_COARSE */

/* On no device that this process has launched on is anything held back or measured, and that is fresh. */
static inline bool window_is_open(void)
{
    return !atomic_load_explicit(&window_closed, memory_order_relaxed) &&
           now_ns(CLOCK_MONOTONIC_COARSE) < atomic_load_explicit(&window_due, memory_order_relaxed);
}

/* What holds for a device, as of the last look, which this makes if it is due. */
struct window window_of(int position);
