/* Reading the marks: what they say is charged, and makes estimates better. */
#include "budget.h"
#include "ledger.h"
#include "meter.h"

#define SECOND INT64_C(1000000000)

enum {
    ORIGIN_SECONDS = 4,
    LATE_NS = 1000,
    UNKNOWN_TIMES = 4,
    UNKNOWN_NS = 5000000,
    OVERLAP_NS = 40000000,
    SAVED_NS = 2000000, /* some stretches */
    MANY = 16,          /* launches, whose mean says something of each */
    DRIFT = 50000       /* one part in so many */
};

bool meter_begin(struct meter *meter)
{
    return !atomic_exchange_explicit(&meter->reading, true, memory_order_acquire);
}

void meter_end(struct meter *meter)
{
    atomic_store_explicit(&meter->reading, false, memory_order_release);
}

/* Where the context's clock is on ours. An event cannot be before it was recorded, nor after it was seen. */
static void set_base(struct context_meter *context, const struct mark *mark, int64_t time, uint64_t now)
{
    int64_t earliest = (int64_t)mark->at - time, latest = (int64_t)now - time;
    context->base -= (int64_t)(now - context->base_at) / DRIFT;
    context->base_at = now;
    if (context->base < earliest)
        context->base = earliest;
    if (context->base > latest)
        context->base = latest;
}

/* The lock is held. The mark's event becomes what times are relative to. */
static void renew_origin(struct meter *meter, uint32_t place, const struct mark *mark, int64_t time)
{
    struct context_meter *context = &meter->contexts[place];
    EACH_STREAM (meter, i)
        if (meter->streams[i].place == place)
            meter->streams[i].time -= time;
    meter_put_event(meter, place, context->origin);
    context->origin = mark->event;
    context->base += time;
}

void meter_release(struct meter *meter, const struct stretch *stretch)
{
    meter->ahead -= stretch->weight < meter->ahead ? stretch->weight : meter->ahead;
    meter->outstanding -= stretch->counted < meter->outstanding ? stretch->counted : meter->outstanding;
}

/* What ran longer than it was paid for ran while credit was thrown away that would have been used up, had it been known
 * before. */
static int64_t forgive(struct meter *meter, const struct stretch *stretch, uint64_t forfeited, int64_t due)
{
    uint64_t from = stretch->forfeited > meter->forgiven ? stretch->forfeited : meter->forgiven;
    uint64_t thrown = forfeited > from ? forfeited - from : 0;
    if (due <= 0)
        return due;
    if (thrown > (uint64_t)due)
        thrown = (uint64_t)due;
    meter->forgiven = from + thrown;
    return due - (int64_t)thrown;
}

/* The lock is held. */
static void note_overlap(struct meter *meter, uint64_t used, uint64_t sum)
{
    meter->lately_used += used;
    meter->lately_summed += sum;
    if (meter->lately_summed > OVERLAP_NS) {
        meter->lately_used /= 2;
        meter->lately_summed /= 2;
    }
}

/* What a stretch is charged for at most: its time where that is known to be its own, else the estimates of what was
 * launched, or something between. What took less than estimated leaves the rest to what takes more: else kernels of
 * one shape and two lengths would be charged for the estimate and for less, and never for more. */
static uint64_t most_of(struct meter *meter, const struct mark *mark, uint64_t length, bool late)
{
    const struct stretch *stretch = &mark->before;
    if (mark->exact && !late)
        return length;
    if (stretch->unknown)
        return least(length, stretch->sum ? UNKNOWN_TIMES * stretch->sum : UNKNOWN_NS);
    uint64_t most = stretch->sum + meter->saved, charged = least(length, most);
    meter->saved = least(most - charged, SAVED_NS);
    return charged;
}

/* The lock is held. Of many launches that took less than estimated, with or without waiting, the estimate was too high. */
static void learn(struct estimate *estimate, const struct mark *mark, uint64_t length, bool late)
{
    uint32_t launches = mark->before.launches;
    uint64_t each = length / launches;
    if (mark->exact)
        estimate_add(estimate, each, launches, late);
    else if (launches >= MANY && each < estimate->mean)
        estimate_add(estimate, each, launches, true);
}

/* Charges for a stretch that took `length` up to `end`; `known`: these are. */
static void settle_stretch(struct meter *meter, const struct mark *mark, bool known, uint64_t length,
                           uint64_t end)
{
    const struct stretch *stretch = &mark->before;
    uint32_t cores = meter->cores;
    uint64_t used = stretch->paid;
    /* What was launched had ended when the mark came: it took no longer than this. */
    bool late = length < mark->behind + mark->behind / 4 + LATE_NS;
    struct vgpu_budget *budget = budget_open(meter->position, &meter->own);
    if (known) {
        used = budget_cover(budget, end - length, end, most_of(meter, mark, length, late));
    } else {
        SHARED_ADD(budget->charged, used);
    }
    SHARED_ADD(budget->launches, stretch->launches);
    atomic_fetch_add_explicit(&meter->charged, used, memory_order_relaxed);
    lock_take(&meter->lock);
    int64_t due = (int64_t)used - (int64_t)stretch->paid;
    if (cores)
        due = forgive(meter, stretch, SHARED_READ(budget->cover.forfeited), due);
    if (cores && due > 0 && meter->allowance > 0) { /* debt ends what was drawn before */
        int64_t drawn = due < meter->allowance ? due : meter->allowance;
        meter->allowance -= drawn;
        due -= drawn;
    }
    meter_release(meter, stretch);
    if (known && !stretch->unknown)
        note_overlap(meter, used, stretch->sum);
    /* What ran while others were let through for its sake may have waited for them: that is no estimate. */
    if (known && stretch->key && stretch->forced == meter->forced_in_all)
        learn(estimate_find(&meter->estimates, stretch->key), mark, length, late);
    lock_drop(&meter->lock);
    if (cores && due)
        budget_pay(budget, cores, due);
}

static uint64_t off_by(uint64_t length, uint64_t sum)
{
    return length > sum ? length - sum : sum - length;
}

/* Takes the first mark of a stream out of its ring, at the time that its event has on the context's clock. */
static void take_mark(struct meter *meter, struct stream_meter *stream, const struct mark *mark, bool good,
                      int64_t time, uint64_t now)
{
    struct context_meter *context = &meter->contexts[stream->place];
    int64_t length = 0;
    bool known = false;
    lock_take(&meter->lock);
    if (good) {
        if (!context->base_at) {
            context->base_at = now;
            context->base = (int64_t)mark->at - time;
        }
        set_base(context, mark, time, now);
        known = stream->timed;
        length = time - stream->time - (int64_t)mark->before.gap;
        length -= length < 2 * mark->extra ? length / 2 : mark->extra;
    }
    uint64_t end = (uint64_t)(context->base + time);
    bool regular = known && mark->extra == EVENT_NS && length > 0;
    stream->wrong = regular ? off_by((uint64_t)length, mark->before.sum) : UINT64_MAX;
    stream->ended = good ? end : 0;
    stream->timed = good;
    stream->time = time;
    if (good && (!context->origin || time > ORIGIN_SECONDS * SECOND))
        renew_origin(meter, stream->place, mark, time);
    else
        meter_put_event(meter, stream->place, mark->event);
    meter_drop_mark(meter, stream);
    meter->progress_at = now;
    meter->forced = 0;
    lock_drop(&meter->lock);
    if (mark->before.launches)
        settle_stretch(meter, mark, known, length > 0 ? (uint64_t)length : 0, end);
}

/* The first mark of a stream, if the device has passed it. `reading` is ours, so nobody else takes it away. */
static bool read_mark(struct meter *meter, struct stream_meter *stream)
{
    struct mark mark;
    float milliseconds = 0;
    lock_take(&meter->lock);
    bool some = stream->count != 0;
    CUevent origin = meter->contexts[stream->place].origin;
    if (some)
        mark = stream->ring[stream->head];
    lock_drop(&meter->lock);
    if (!some)
        return false;
    CUresult result = REAL(cuEventQuery)(mark.event);
    if (result == CUDA_ERROR_NOT_READY)
        return false;
    if (result == CUDA_SUCCESS && origin)
        result = REAL(cuEventElapsedTime)(&milliseconds, origin, mark.event);
    bool good = result == CUDA_SUCCESS;
    int64_t time = good ? (int64_t)((double)milliseconds * 1e6) : 0;
    take_mark(meter, stream, &mark, good, time, now_ns(CLOCK_MONOTONIC));
    return true;
}

/* Events can be asked about in a context only, and the calling thread may have none. */
/* Elapsed times can be asked for in a context only, and the thread of the lease has none. */
static void read_stream(struct meter *meter, struct stream_meter *stream, bool nowhere)
{
    CUcontext context = (CUcontext)(uintptr_t)stream->context;
    if (nowhere && REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return;
    while (read_mark(meter, stream))
        ;
    if (nowhere)
        REAL(cuCtxPopCurrent_v2)(&context);
}

static void read_streams(struct meter *meter)
{
    CUcontext current = NULL;
    bool nowhere = REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || !current;
    EACH_STREAM (meter, i)
        if (meter->streams[i].count)
            read_stream(meter, &meter->streams[i], nowhere);
}

bool meter_read(struct meter *meter)
{
    if (!meter_begin(meter))
        return false;
    atomic_store_explicit(&meter->read_at, now_ns(CLOCK_MONOTONIC), memory_order_relaxed);
    if (meter->marks) {
        int mode = capture_leave();
        read_streams(meter);
        capture_return(mode);
    }
    meter_end(meter);
    return true;
}

void meter_expire(struct meter *meter, uint64_t now)
{
    meter_inside(meter, now);
    lock_take(&meter->lock);
    EACH_STREAM (meter, i) {
        struct stream_meter *stream = &meter->streams[i];
        struct stretch *open = &stream->open;
        if (stream->count || !open->counted || now < stream->last_launch + open->sum + GAP_NS)
            continue;
        meter_release(meter, open);
        open->weight = 0;
        open->counted = 0;
    }
    lock_drop(&meter->lock);
}
