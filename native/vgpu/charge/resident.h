/* Slices whose memory nvcd moves: calls that need it on its devices, and room that others make.
 *
 * Most calls wait in the driver until a suspended process has come back. With driver 580 these do not: waits and queries
 * of events, streams and contexts fault, and the question for free memory returns an error.
 *
 * Where the driver has no room for what the slice may have, nvcd can move another slice, one that is idle before others. */
#pragma once

#include "process/real.h"
#include "process/system.h"

/* Between two looks at the quota: nvcd waits for longer before it locks the process. */
enum { RESIDENT_NS = 20000000 };

extern _Atomic uint64_t resident_due; /* CLOCK_MONOTONIC_COARSE */

/* Waits while the slice is suspended. */
__attribute__((cold)) void resident_look(void);

static inline void resident_wait(void)
{
    uint64_t now = now_ns(CLOCK_MONOTONIC_COARSE),
             due = atomic_load_explicit(&resident_due, memory_order_relaxed);
    if (__builtin_expect(now >= due || due - now > 2 * RESIDENT_NS, 0)) /* or of before a checkpoint */
        resident_look();
}

#define RESIDENT(name) (resident_wait(), REAL(name))
#define RESIDENT_IN(per_thread, name) (resident_wait(), REAL_IN(per_thread, name))

/* Waits, for a minute at most, until nvcd has done what it can for what is charged and not there yet, and for bytes that are
 * not charged; false: it does nothing, or these do not fit. The caller holds no lock and no turn. */
__attribute__((cold)) bool resident_make_room(int position, uint64_t uncharged);

/* What the driver answers, asked once more where room was made. */
#define WITH_ROOM(position, uncharged, call)                                                                \
    __extension__({                                                                                         \
        CUresult answer_ = (call);                                                                          \
        bool full_ = answer_ == CUDA_ERROR_OUT_OF_MEMORY;                                                   \
        (full_ && resident_make_room(position, uncharged)) ? (call) : answer_;                              \
    })
