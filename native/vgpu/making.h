/* What making a context costs others. The driver works on the device again and again meanwhile, a moment each time, and
 * each time the device changes to another process's work and back. The slice pays for it, and waits for credit before. */
#ifndef NVC_VGPU_MAKING_H
#define NVC_VGPU_MAKING_H

#include "meter.h"

/* What was paid for one. */
struct making_time {
    int position;
    uint64_t time;
    uint64_t since; /* CLOCK_MONOTONIC, nanoseconds; 0: nothing was paid */
};

/* Before the driver's call: also if that fails, or the process ends in it. False: it is not known what the slice has. */
bool making_begin(struct making_time *making, int position);

/* Behind it: no more is paid than the time that it took. */
void making_end(const struct making_time *making);

#endif
