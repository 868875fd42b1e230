/* Ends of contexts and streams, and what the lease wants to know of the meter. */
#include "budget.h"
#include "ledger.h"
#include "lease.h"
#include "meter.h"

#include <sched.h>

enum { WRONG_NS = 25000 }; /* an estimate by more is none to hand a lease on by */

/* The one who reads is in the driver for a short while, with calls that do not wait. */
static void begin(struct meter *meter)
{
    while (!meter_begin(meter))
        sched_yield();
}

/* The lock is held. For what is not read yet, the estimates stay charged. */
static uint64_t clear_stream(struct meter *meter, struct stream_meter *stream)
{
    uint64_t paid = stream->open.paid;
    meter_release(meter, &stream->open);
    while (stream->count) {
        const struct mark *mark = &stream->ring[stream->head];
        paid += mark->before.paid;
        meter_release(meter, &mark->before);
        meter_put_event(meter, stream->place, mark->event);
        meter_drop_mark(meter, stream);
    }
    meter_free_stream(meter, stream);
    return paid;
}

static void retire_from(struct meter *meter, uint64_t context)
{
    CUevent events[METER_POOL + 1];
    uint32_t count = 0;
    uint64_t paid = 0;
    begin(meter);
    lock_take(&meter->lock);
    EACH_STREAM (meter, i)
        if (meter->streams[i].context == context)
            paid += clear_stream(meter, &meter->streams[i]);
    for (uint32_t i = 0; i < METER_CONTEXTS; i++) {
        struct context_meter *at = &meter->contexts[i];
        if (at->context != context)
            continue;
        while (at->pooled)
            events[count++] = at->pool[--at->pooled];
        if (at->origin)
            events[count++] = at->origin;
        *at = (struct context_meter){0};
    }
    lock_drop(&meter->lock);
    meter_end(meter);
    while (count)
        REAL(cuEventDestroy_v2)(events[--count]);
    atomic_fetch_add(&meter->charged, paid);
    if (paid)
        SHARED_ADD(budget_open(meter->position, &meter->own)->charged, paid);
}

void meter_retire_context(uint64_t context)
{
    for (int i = 0; i < VGPU_DEVICES; i++)
        if (meter_of(i))
            retire_from(meter_of(i), context);
}

/* A mark behind what was launched last in a stream of which no thread may make another use now. */
static void close_stream(struct meter *meter, struct stream_meter *stream)
{
    struct passage passage = {.meter = meter,
                              .stream = stream,
                              .to = {.position = meter->position, .context = stream->context},
                              .handle = (CUstream)(uintptr_t)stream->handle};
    int capturing = 0;
    if (stream->open.launches && !stream->thread &&
        REAL(cuStreamIsCapturing)(passage.handle, &capturing) == CUDA_SUCCESS && !capturing)
        meter_mark(&passage, false, STRETCH_LOOSE, 0);
}

void meter_retire_stream(CUstream handle)
{
    for (int position = 0; position < VGPU_DEVICES; position++) {
        struct meter *meter = meter_of(position);
        if (!meter)
            continue;
        begin(meter);
        EACH_STREAM (meter, i) {
            struct stream_meter *stream = &meter->streams[i];
            if (stream->handle != (uint64_t)(uintptr_t)handle)
                continue;
            int mode = capture_leave();
            close_stream(meter, stream);
            capture_return(mode);
            lock_take(&meter->lock);
            if (stream->count)
                stream->handle = STREAM_ENDED;
            else
                clear_stream(meter, stream);
            lock_drop(&meter->lock);
        }
        meter_end(meter);
    }
}

void meter_forget(uint64_t key)
{
    for (int position = 0; position < VGPU_DEVICES; position++) {
        struct meter *meter = meter_of(position);
        if (!meter)
            continue;
        lock_take(&meter->lock);
        estimate_find(&meter->estimates, key)->samples = 0;
        estimate_find(&meter->estimates, key)->mean = 0;
        lock_drop(&meter->lock);
    }
}

CU_API CUresult cuStreamDestroy(CUstream stream)
{
    if ((uintptr_t)stream > 2)
        meter_retire_stream(stream);
    return REAL(cuStreamDestroy)(stream);
}

CU_API CUresult cuStreamDestroy_v2(CUstream stream)
{
    if ((uintptr_t)stream > 2)
        meter_retire_stream(stream);
    return REAL(cuStreamDestroy_v2)(stream);
}

/* The calling thread may have no context. Streams whose last launch has no mark behind it get one. */
static void close_streams(struct meter *meter)
{
    EACH_STREAM (meter, i) {
        struct stream_meter *stream = &meter->streams[i];
        CUcontext before;
        if (stream->handle == STREAM_ENDED || !stream->open.launches ||
            REAL(cuCtxPushCurrent_v2)((CUcontext)(uintptr_t)stream->context) != CUDA_SUCCESS)
            continue;
        close_stream(meter, stream);
        REAL(cuCtxPopCurrent_v2)(&before);
    }
}

static bool has_open(const struct meter *meter)
{
    EACH_STREAM (meter, i)
        if (meter->streams[i].open.counted)
            return true;
    return false;
}

bool meter_is_drained(int position)
{
    struct meter *meter = meter_of(position);
    if (!meter)
        return true;
    if (meter_inside(meter, now_ns(CLOCK_MONOTONIC))) {
        meter_read(meter);
        return false;
    }
    lock_take(&meter->lock);
    bool open = has_open(meter);
    lock_drop(&meter->lock);
    if (open && meter_begin(meter)) {
        int mode = capture_leave();
        close_streams(meter);
        capture_return(mode);
        meter_end(meter);
        /* Nobody but its thread can put a mark into a default stream, and a broken context takes none. */
        meter_expire(meter, now_ns(CLOCK_MONOTONIC));
    }
    if (!meter_read(meter))
        return false;
    lock_take(&meter->lock);
    bool drained = !meter->marks && !has_open(meter);
    lock_drop(&meter->lock);
    return drained && !atomic_load(&meter->inside);
}

/* The lock is held. When the work of a stream will have ended; 0: not known. */
static uint64_t end_of(const struct stream_meter *stream)
{
    uint64_t end = stream->ended + stream->open.sum;
    for (uint32_t i = 0; i < stream->count; i++) {
        const struct mark *mark = &stream->ring[(stream->head + i) % METER_MARKS];
        end += mark->before.gap + mark->before.sum + mark->extra;
    }
    return stream->ended ? end : 0;
}

static bool is_certain(const struct stream_meter *stream)
{
    const struct mark *last = &stream->ring[stream->head];
    return stream->count == 1 && !stream->open.counted && last->extra == EVENT_NS && !last->before.unknown &&
           stream->wrong < WRONG_NS;
}

struct outlook meter_outlook(int position)
{
    struct outlook found = {.known = true, .certain = true};
    struct meter *meter = meter_of(position);
    uint64_t now = now_ns(CLOCK_MONOTONIC), latest = 0;
    uint32_t busy = 0;
    lock_take(&meter->lock);
    EACH_STREAM (meter, i) {
        const struct stream_meter *stream = &meter->streams[i];
        if (!stream->count && !stream->open.counted)
            continue;
        uint64_t end = end_of(stream);
        found.known &= end != 0;
        found.certain &= is_certain(stream);
        latest = end > latest ? end : latest;
        busy++;
    }
    found.left = (int64_t)(latest - now);
    found.known &= busy != 0;
    found.certain &= found.known && busy == 1 && !atomic_load(&meter->inside);
    lock_drop(&meter->lock);
    return found;
}

/* What others ran meanwhile is not charged for, and makes no estimate. */
void meter_loosen(int position)
{
    struct meter *meter = meter_of(position);
    lock_take(&meter->lock);
    EACH_STREAM (meter, i)
        for (uint32_t at = 0; at < meter->streams[i].count; at++) {
            struct mark *mark = &meter->streams[i].ring[(meter->streams[i].head + at) % METER_MARKS];
            mark->exact = false;
            mark->extra = 0;
        }
    lock_drop(&meter->lock);
}

bool meter_look(int position)
{
    struct meter *meter = meter_of(position);
    return meter && meter->marks && meter_read(meter) && meter->marks;
}

uint64_t meter_charged(int position)
{
    struct meter *meter = meter_of(position);
    return meter ? atomic_load(&meter->charged) : 0;
}

uint64_t meter_last_launch(int position)
{
    struct meter *meter = meter_of(position);
    return meter ? atomic_load(&meter->last_launch) : 0;
}
