#include "meter.h"

#include "budget.h"
#include "ledger.h"
#include "lease.h"

#include <sys/mman.h>

struct meter *meter_of(int position)
{
    struct process *in = process();
    if (!in || position < 0 || position >= VGPU_DEVICES)
        return NULL;
    return atomic_load_explicit(&in->meters[position], memory_order_acquire);
}

struct meter *meter_make(int position)
{
    struct meter *have = meter_of(position), *made;
    if (have || !process() || position < 0 || position >= VGPU_DEVICES)
        return have;
    made = mmap(NULL, sizeof(*made), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                0);
    if (made == MAP_FAILED)
        return NULL;
    made->position = position;
    if (atomic_compare_exchange_strong(&process()->meters[position], &have, made))
        return made;
    munmap(made, sizeof(*made));
    return have;
}

/* An address that no other thread has. */
static uint64_t this_thread(void)
{
    static __thread char here;
    return (uint64_t)(uintptr_t)&here;
}

static uint32_t context_place(struct meter *meter, uint64_t context)
{
    uint32_t free_place = METER_CONTEXTS;
    for (uint32_t i = METER_CONTEXTS; i-- > 0;) {
        if (meter->contexts[i].context == context)
            return i;
        if (!meter->contexts[i].context)
            free_place = i;
    }
    if (free_place < METER_CONTEXTS)
        meter->contexts[free_place].context = context;
    return free_place;
}

/* One of the program's streams: its handle, its context and, of a default stream per thread, whose. */
struct name {
    uint64_t handle, context, thread;
};

static bool has_name(const struct stream_meter *stream, struct name name)
{
    return stream->handle == name.handle && stream->context == name.context && stream->thread == name.thread;
}

static struct stream_meter *add_stream(struct meter *meter, uint32_t at, struct name name)
{
    uint32_t place = context_place(meter, name.context);
    if (place == METER_CONTEXTS)
        return NULL;
    meter->streams[at] = (struct stream_meter){
        .handle = name.handle, .context = name.context, .thread = name.thread, .place = place};
    atomic_fetch_or_explicit(&meter->live[at / 64], UINT64_C(1) << at % 64, memory_order_relaxed);
    return &meter->streams[at];
}

/* Default streams are one in each context, or one in each context and thread. NULL: there is no room. */
static struct stream_meter *find_stream(struct meter *meter, const struct passage *passage)
{
    uint64_t handle = (uint64_t)(uintptr_t)passage->handle, context = passage->to.context;
    struct name name = {handle, context, handle == 2 ? this_thread() : 0};
    uint64_t hash = (handle ^ context * 3 ^ name.thread) * UINT64_C(0x9e3779b97f4a7c15);
    for (uint32_t step = 0; step < METER_STREAMS; step++) {
        uint32_t at = (uint32_t)((hash >> 40) + step) % METER_STREAMS;
        if (has_name(&meter->streams[at], name))
            return &meter->streams[at];
        if (meter->streams[at].handle)
            continue;
        EACH_STREAM (meter, other) /* which may have come when this place was taken */
            if (has_name(&meter->streams[other], name))
                return &meter->streams[other];
        return add_stream(meter, at, name);
    }
    return NULL;
}

/* The lock is held. */
void meter_free_stream(struct meter *meter, struct stream_meter *stream)
{
    uint32_t at = (uint32_t)(stream - meter->streams);
    stream->handle = 0;
    stream->context = 0;
    atomic_fetch_and_explicit(&meter->live[at / 64], ~(UINT64_C(1) << at % 64), memory_order_relaxed);
}

/* The context of the stream is current, or is made so. */
CUevent meter_event(struct meter *meter, struct stream_meter *stream)
{
    struct context_meter *context = &meter->contexts[stream->place];
    CUevent event = NULL;
    CUcontext current = NULL, wanted = (CUcontext)(uintptr_t)stream->context;
    lock_take(&meter->lock);
    if (context->pooled)
        event = context->pool[--context->pooled];
    lock_drop(&meter->lock);
    if (event)
        return event;
    bool other = REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || current != wanted;
    if (other && REAL(cuCtxPushCurrent_v2)(wanted) != CUDA_SUCCESS)
        return NULL;
    if (REAL(cuEventCreate)(&event, 0) != CUDA_SUCCESS)
        event = NULL;
    if (other)
        REAL(cuCtxPopCurrent_v2)(&current);
    return event;
}

/* The lock is held. What there is no room for is left to the context's end. */
void meter_put_event(struct meter *meter, uint32_t place, CUevent event)
{
    struct context_meter *context = &meter->contexts[place];
    if (event && context->pooled < METER_POOL)
        context->pool[context->pooled++] = event;
}

void meter_drop_mark(struct meter *meter, struct stream_meter *stream)
{
    stream->head = (stream->head + 1) % METER_MARKS;
    stream->count--;
    meter->marks--;
    if (stream->handle == STREAM_ENDED && !stream->count)
        meter_free_stream(meter, stream);
}

/* Records a mark behind all that was launched in the stream. False: it has none, and what is open stays so. */
bool meter_mark(struct passage *passage, bool idle, enum stretch_is is, uint64_t asked)
{
    struct meter *meter = passage->meter;
    struct stream_meter *stream = passage->stream;
    if (stream->count == METER_MARKS)
        return false;
    CUevent event = meter_event(meter, stream);
    if (!event)
        return false;
    bool recorded = REAL(cuEventRecord)(event, passage->handle) == CUDA_SUCCESS;
    uint64_t now = now_ns(CLOCK_MONOTONIC);
    lock_take(&meter->lock);
    bool room = recorded && stream->count < METER_MARKS && stream->context == passage->to.context;
    if (room) {
        /* A thread that was interrupted may have come too late with it. */
        bool exact = is != STRETCH_LOOSE && now - asked < PROMPT_NS;
        stream->ring[(stream->head + stream->count) % METER_MARKS] =
            (struct mark){.event = event,
                          .at = now,
                          .before = stream->open,
                          .behind = now - stream->last_launch,
                          .exact = exact,
                          .extra = !exact               ? 0
                                   : is == STRETCH_LONE ? LONE_NS
                                                        : EVENT_NS};
        stream->open = (struct stretch){0};
        stream->count++;
        stream->serial++;
        stream->anchored = true;
        stream->idle = idle;
        stream->last_mark = now;
        stream->prompt = now - asked < PROMPT_NS;
        meter->marks++;
    } else {
        meter_put_event(meter, stream->place, event);
    }
    lock_drop(&meter->lock);
    return room;
}

/* Whether the device has not reached the last mark of the stream: since then the stream was never idle. */
static bool mark_is_pending(struct meter *meter, struct stream_meter *stream)
{
    lock_take(&meter->lock);
    uint64_t serial = stream->serial;
    uint32_t count = stream->count;
    CUevent event = count ? stream->ring[(stream->head + count - 1) % METER_MARKS].event : NULL;
    lock_drop(&meter->lock);
    if (!event || REAL(cuEventQuery)(event) != CUDA_ERROR_NOT_READY)
        return false;
    lock_take(&meter->lock); /* or the event is another's by now */
    bool same = stream->count && stream->serial == serial;
    lock_drop(&meter->lock);
    return same;
}

/* The lock is held. */
static void enter(struct passage *passage)
{
    struct meter *meter = passage->meter;
    uint32_t place = 0;
    while (place < METER_INSIDE && atomic_load(&meter->threads[place].since))
        place++;
    if (place < METER_INSIDE) {
        meter->threads[place].weight = passage->weight;
        atomic_store(&meter->threads[place].since, passage->now);
    }
    passage->place = place;
    atomic_fetch_add(&meter->inside, 1);
}

/* Where each kernel is waited for, no other is timed, and all are charged as estimated, however long they have become. By
 * chance alone: what is launched after so many others, or after a long one, may always be the same. */
static bool is_timed_alone(struct estimate *estimate, uint64_t now)
{
    uint64_t every = now - estimate->timed > UNTIMED_NS ? ALONE_LATE : ALONE_SHORT;
    if (now / CHANCE_NS % (estimate->mean < LONG_NS ? every : ALONE_LONG))
        return false;
    estimate->timed = now;
    return true;
}

void meter_enter(struct passage *passage)
{
    struct meter *meter = passage->meter;
    struct stream_meter *stream = passage->stream = find_stream(meter, passage);
    enter(passage);
    struct estimate *estimate = estimate_find(&meter->estimates, passage->key);
    passage->single = estimate_is_due(estimate);
    passage->lone = is_timed_alone(estimate, passage->now);
    estimate->since = passage->single ? 0 : estimate->since + 1;
    if (!stream)
        return;
    const struct stretch *open = &stream->open;
    bool gap = passage->now > stream->last_launch && passage->now - stream->last_launch > GAP_NS + open->sum;
    passage->looks = !stream->anchored || !open->launches || gap || passage->single;
}

void meter_leave(const struct passage *passage)
{
    struct meter *meter = passage->meter;
    uint64_t since = passage->now;
    /* Not if it was forgotten meanwhile. */
    if (passage->place == METER_INSIDE ||
        atomic_compare_exchange_strong(&meter->threads[passage->place].since, &since, 0))
        atomic_fetch_sub(&meter->inside, 1);
}

static void forget(struct meter *meter, struct inside *thread, uint64_t now)
{
    uint64_t since = atomic_load(&thread->since);
    if (!since || now < since + LOST_NS || !atomic_compare_exchange_strong(&thread->since, &since, 0))
        return;
    atomic_fetch_sub(&meter->inside, 1);
    meter->ahead -= thread->weight < meter->ahead ? thread->weight : meter->ahead;
    meter->outstanding -= meter->outstanding != 0;
}

uint32_t meter_inside(struct meter *meter, uint64_t now)
{
    if (!atomic_load(&meter->inside))
        return 0;
    lock_take(&meter->lock);
    for (uint32_t i = 0; i < METER_INSIDE && !meter->marks; i++)
        forget(meter, &meter->threads[i], now);
    lock_drop(&meter->lock);
    return atomic_load(&meter->inside);
}

void meter_before(struct passage *passage)
{
    struct stream_meter *stream = passage->stream;
    if (!stream || !(passage->looks || passage->lone))
        return;
    int mode = capture_leave();
    uint64_t now = now_ns(CLOCK_MONOTONIC);
    /* A last mark that is pending answers for the stream. */
    bool some = stream->open.launches != 0, pending = mark_is_pending(passage->meter, stream);
    bool idle = !pending && REAL(cuStreamQuery)(passage->handle) == CUDA_SUCCESS;
    if (!stream->anchored || idle || (some && passage->looks)) {
        bool marked = meter_mark(passage, idle, some && pending ? STRETCH_QUEUED : STRETCH_LOOSE, now);
        passage->single |= marked && idle && passage->lone;
    }
    capture_return(mode);
}

static void unpay(struct passage *passage)
{
    struct meter *meter = passage->meter;
    lock_take(&meter->lock);
    meter->allowance += (int64_t)passage->paid;
    meter->ahead -= passage->weight < meter->ahead ? passage->weight : meter->ahead;
    meter->outstanding -= meter->outstanding != 0;
    lock_drop(&meter->lock);
}

/* Adds the launch to what is open. Returns the time if a mark is due behind it, else 0. */
static uint64_t note(struct passage *passage)
{
    struct meter *meter = passage->meter;
    struct stream_meter *stream = passage->stream;
    struct stretch *open = &stream->open;
    lock_take(&meter->lock);
    bool first = !open->launches;
    open->launches++;
    open->counted++;
    open->sum += passage->sum;
    open->paid += passage->paid;
    open->weight += passage->weight;
    open->unknown |= passage->unknown;
    /* The lease looks at streams of other threads, but cannot put marks into this one. */
    bool due = passage->single || open->sum >= MARK_NS || open->launches >= MARK_LAUNCHES ||
               (stream->thread && lease_is_active(meter->position));
    uint64_t now = first || due ? now_ns(CLOCK_MONOTONIC) : passage->now;
    if (first) {
        /* The device waited for the end of the call. */
        uint64_t gap = now - stream->last_mark;
        open->key = passage->key;
        open->gap = stream->idle ? gap : 0;
        open->forfeited = meter->forfeited;
        open->forced = passage->forced;
        stream->prompt &= gap < PROMPT_NS;
    } else if (open->key != passage->key) {
        open->key = 0;
    }
    stream->last_launch = now;
    lock_drop(&meter->lock);
    atomic_store_explicit(&meter->last_launch, now, memory_order_relaxed);
    return due ? now : 0;
}

/* There was no room for the stream: the estimate must do. */
static void note_unmarked(struct passage *passage)
{
    struct meter *meter = passage->meter;
    struct vgpu_budget *budget = budget_open(meter->position, &meter->own);
    atomic_store_explicit(&meter->last_launch, passage->now, memory_order_relaxed);
    atomic_fetch_add_explicit(&meter->charged, passage->paid, memory_order_relaxed);
    SHARED_ADD(budget->charged, passage->paid);
    SHARED_ADD(budget->launches, 1);
    passage->paid = 0;
    unpay(passage);
}

void meter_after(struct passage *passage, bool launched)
{
    struct meter *meter = passage->meter;
    struct stream_meter *stream = passage->stream;
    if (!launched) {
        unpay(passage);
        return;
    }
    if (!stream) {
        note_unmarked(passage);
        return;
    }
    uint64_t now = note(passage);
    if (!now)
        return;
    int mode = capture_leave();
    bool alone = stream->open.launches == 1 && stream->idle && stream->prompt;
    meter_mark(passage, false,
               alone                            ? STRETCH_LONE
               : mark_is_pending(meter, stream) ? STRETCH_QUEUED
                                                : STRETCH_LOOSE,
               now);
    capture_return(mode);
}
