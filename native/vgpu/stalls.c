/* Work that does not run yet: in front of it its stream waits for a word, an event, a function of the program, or another
 * process. Where a program puts such a wait into a stream, a mark before it shows when what is in front has ended, and
 * one behind it, in front of the next launch, that what follows has not begun.
 *
 * Only the answer "not reached" counts, and only for the time before it was asked for. So what follows is charged from the
 * last such answer on, a moment too early and never too late, and whatever has no mark is charged from its launch. Other
 * streams with unfinished work have their own marks, or run: a device stalls only while all of them do. */
#include "capture.h"
#include "gate.h"

enum { WAITS_BITS = 12, WAITS = 1 << WAITS_BITS, MARKS = 2, YIELDS = 100 };

/* Streams with a wait that no launch came behind; where two have the same place, one of them has no mark. Of 64 places, eight
 * streams shared one in every third process. Pages that are not used take no memory. */
static struct {
    _Atomic uint64_t key;    /* of the stream; 0: there is none */
    _Atomic bool own;        /* the wait is in the stream itself */
    _Atomic uint32_t legacy; /* `legacy`, when something was last launched in one of these streams */
} waits[WAITS];

static _Atomic uint32_t own_waits; /* of these, where `own` is set */

/* Waits of the legacy stream, which may be ones of all blocking streams. */
static _Atomic uint32_t legacy;

enum { LEGACY_STREAM = 1 };

static uint64_t key_of(uint64_t handle, uint64_t thread)
{
    return handle ^ thread << 48;
}

static uint32_t place_of(uint64_t key)
{
    return (uint32_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> (64 - WAITS_BITS));
}

/* Whether a launch of another thread is on its way into the stream, or has come into it without a mark behind it. */
static bool is_unmarked(struct meter *meter, uint64_t handle, uint64_t context, uint64_t thread,
                        bool on_its_way)
{
    lock_take(&meter->lock);
    struct stream *stream = meter->room ? stream_find(meter, handle, context, thread) : NULL;
    bool found = stream && (on_its_way ? stream->made != stream->begun : stream->made > stream->marked);
    lock_drop(&meter->lock);
    return found;
}

/* A mark that comes behind the wait does not say when that ended which is in front of it. */
static void mark_before_wait(struct meter *meter, CUstream stream, uint64_t context, uint64_t thread)
{
    uint64_t handle = (uintptr_t)stream;
    for (int i = 0; i < MARKS; i++) {
        for (int step = 0; step < YIELDS && is_unmarked(meter, handle, context, thread, true); step++)
            syscall(SYS_sched_yield);
        if (!is_unmarked(meter, handle, context, thread, false) ||
            !mark_put(meter, stream, handle, context, thread))
            return;
    }
}

void stall_expect(CUstream handle, uint64_t context, int position, uint64_t thread)
{
    uint64_t key = key_of((uintptr_t)handle, thread);
    struct meter *meter = meter_of(position);
    if (meter && atomic_load(&meter->busy))
        mark_before_wait(meter, handle, context, thread);
    atomic_store(&waits[place_of(key)].key, key);
    if (!atomic_exchange(&waits[place_of(key)].own, true))
        atomic_fetch_add(&own_waits, 1);
    atomic_store(&waits[place_of(LEGACY_STREAM)].key, LEGACY_STREAM); /* it waits for blocking streams */
    if (key == LEGACY_STREAM)
        atomic_fetch_add(&legacy, 1);
}

bool stall_is_expected(void)
{
    return atomic_load_explicit(&own_waits, memory_order_relaxed) != 0;
}

void stall_mark(struct launch *launch)
{
    uint64_t key = key_of((uintptr_t)launch->handle, launch->thread);
    uint32_t place = place_of(key), seen = atomic_load_explicit(&legacy, memory_order_relaxed);
    bool waits_itself = atomic_load_explicit(&waits[place].key, memory_order_relaxed) == key;
    if (__builtin_expect(!waits_itself && atomic_load(&waits[place].legacy) == seen, 1))
        return;
    if (waits_itself) {
        atomic_store(&waits[place].key, 0);
        if (atomic_exchange(&waits[place].own, false))
            atomic_fetch_sub(&own_waits, 1);
    }
    if (waits_itself && key == LEGACY_STREAM)
        seen = atomic_fetch_add(&legacy, 1) + 1; /* and blocking ones wait for it */
    atomic_store(&waits[place].legacy, seen);
    mark_put_before(launch);
}

/* What is unfinished of the stream is all behind its first mark. */
static bool is_held(const struct stream *stream)
{
    const struct mark *mark = &stream->ring[stream->head % METER_MARKS];
    return stream->count && mark->begins && stream->ended == mark->launches;
}

void stall_note(struct stream *stream, uint64_t asked)
{
    if (!is_held(stream))
        return;
    stream->still = asked;
    if (stream->entered < asked)
        stream->entered = asked; /* so long, it has not waited for others of ours */
}

void stall_leave_out(struct meter *meter, uint64_t now)
{
    uint64_t busy = atomic_load(&meter->busy), end = meter->latest > busy ? meter->latest : busy, next = now;
    if (!busy || !meter->used || meter->closing)
        return;
    for (uint32_t i = 0; i < meter->room; i++)
        if (stream_is_used(&meter->streams[i]))
            next = least(next, meter->streams[i].still);
    if (end < next)
        meter_close_interval(meter, end, next, now);
}

/* What ended after a mark was asked about may have let that go on. */
bool stall_is_on(const struct meter *meter, uint64_t asked)
{
    bool still = atomic_load(&meter->busy) && meter->used && !meter->closing;
    asked = meter->latest > asked ? meter->latest : asked;
    for (uint32_t i = 0; still && i < meter->room; i++)
        still = !stream_is_used(&meter->streams[i]) ||
                (is_held(&meter->streams[i]) && meter->streams[i].still >= asked);
    return still;
}

#define STALL(name, parameters, arguments, stream)                                                          \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        gate_expect_stall(stream, false);                                                                   \
        return REAL(name) arguments;                                                                        \
    }                                                                                                       \
    CU_API CUresult name##_ptsz parameters                                                                  \
    {                                                                                                       \
        gate_expect_stall(stream, true);                                                                    \
        return REAL(name##_ptsz) arguments;                                                                 \
    }

#define WORD(name, type)                                                                                    \
    STALL(name, (CUstream stream, CUdeviceptr address, type value, unsigned int flags),                     \
          (stream, address, value, flags), stream)

#define BATCH(name)                                                                                         \
    STALL(name, (CUstream stream, unsigned int count, void *list, unsigned int flags),                      \
          (stream, count, list, flags), stream)

WORD(cuStreamWaitValue32, uint32_t)
WORD(cuStreamWaitValue32_v2, uint32_t)
WORD(cuStreamWaitValue64, uint64_t)
WORD(cuStreamWaitValue64_v2, uint64_t)
BATCH(cuStreamBatchMemOp)
BATCH(cuStreamBatchMemOp_v2)

/* An event of a stream that captures lets this one capture as well. */
#define WAIT(name, per_thread)                                                                              \
    CU_API CUresult name(CUstream stream, CUevent event, unsigned int flags)                                \
    {                                                                                                       \
        bool captures = capture_is_any();                                                                   \
        if (captures)                                                                                       \
            capture_change(true);                                                                           \
        gate_expect_stall(stream, per_thread);                                                              \
        CUresult result = REAL(name)(stream, event, flags);                                                 \
        if (captures)                                                                                       \
            capture_change(false);                                                                          \
        return result;                                                                                      \
    }

WAIT(cuStreamWaitEvent, false)
WAIT(cuStreamWaitEvent_ptsz, true)

STALL(cuLaunchHostFunc, (CUstream stream, void (*function)(void *), void *argument),
      (stream, function, argument), stream)
STALL(cuLaunchHostFunc_v2, (CUstream stream, void (*function)(void *), void *argument, unsigned int mode),
      (stream, function, argument, mode), stream)
STALL(cuStreamAddCallback,
      (CUstream stream, void (*function)(CUstream, CUresult, void *), void *argument, unsigned int flags),
      (stream, function, argument, flags), stream)
STALL(cuWaitExternalSemaphoresAsync,
      (const void *semaphores, const void *parameters, unsigned int count, CUstream stream),
      (semaphores, parameters, count, stream), stream)
