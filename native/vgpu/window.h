/* What launches may do on each device, as the quota says, known cheaply: while nothing is to be held back, a launch reads
 * two words and a coarse clock. */
#ifndef NVC_VGPU_WINDOW_H
#define NVC_VGPU_WINDOW_H

#include "process.h"

enum { WINDOW_NS = 20000000 }; /* between two looks at the quota */

struct window {
    uint32_t cores; /* percent; 0: no cap */
    bool paused;
    bool shared;  /* nvcd hands out turns, when it is there */
    bool unknown; /* the quota cannot be read, or the host's time is not known */
    bool weighed; /* time is measured, so that nvcd can keep slices that run at once to their weights */
};

extern _Atomic bool window_closed;
extern _Atomic uint64_t window_due; /* CLOCK_MONOTONIC_COARSE */

/* No device that this process has launched on is capped, paused or handed out in turns, and that is fresh. */
static inline bool window_is_open(void)
{
    return !atomic_load_explicit(&window_closed, memory_order_relaxed) &&
           now_ns(CLOCK_MONOTONIC_COARSE) < atomic_load_explicit(&window_due, memory_order_relaxed);
}

/* What holds for a device, as of the last look, which this makes if it is due. */
struct window window_of(int position);

#endif
