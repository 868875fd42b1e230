/* Marks: timed events of ours in the program's streams, behind some of its launches. The device's clock is brought onto
 * ours: an event is not reached before it was recorded, nor after it was seen to be. */
#include "capture.h"
#include "lease.h"
#include "meter.h"
#include "own_events.h"

#include <string.h>

#define SECOND INT64_C(1000000000)

enum {
    ORIGIN_SECONDS = 4,
    SET_NS = 500000000, /* between two times that the clocks are compared */
    DRIFT = 50000,      /* one part in so many */
    BACKLOG_NS = 20000, /* a mark is reached so late: there was work all the time, or too much is charged */
    SAMPLE_LAUNCHES = 12,
    SAMPLE_ONE_OF = 16,    /* of marks, each behind MARK_LAUNCHES launches */
    DENSITY_NS = 20000000, /* of stretches, after which what came before counts half */
    DENSITY_OLD_NS = 1000000000,
    IDLE_NS = 500000,    /* in which an idle device reaches an event, */
    IDLE_STEP_NS = 20000 /* looked at so often */
};

/* xorshift: what a program cannot foresee. */
static uint64_t random_of(struct density *density)
{
    uint64_t x = density->random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return density->random = x;
}

/* The lock is held. By chance, unless the device has work all the time; where the cap makes marks more frequent, for no more of the launches than without. */
static bool starts_sample(struct meter *meter, const struct stream *stream, uint64_t now)
{
    const struct density *density = &meter->density;
    bool old = now - density->at > DENSITY_OLD_NS / 4;
    uint64_t marks = meter_is_limited(meter) ? MARK_LAUNCHES / launches_a_mark(meter) : 1;
    return !density->full && stream->made > 1 &&
           random_of(&meter->density) % (marks * (old ? 4 : SAMPLE_ONE_OF)) == 0;
}

bool mark_is_due(struct meter *meter, struct stream *stream, uint64_t now)
{
    uint64_t unmarked = stream->made - stream->marked;
    if (stream->count == METER_MARKS || stream->place == METER_CONTEXTS || !unmarked)
        return false;
    if (stream->sample) {
        stream->sample--;
        return true;
    }
    /* Only its own thread can put marks into it, and ask about it. */
    bool alone = stream->thread && (!stream->count || lease_is_active(meter->position));
    /* Where there are few under way, it is no use to know of each. */
    bool due = (unmarked >= launches_a_mark(meter) && meter->under_way >= meter_room(meter) / 2) ||
               unmarked >= MARK_LAUNCHES || now - stream->since >= MARK_NS || alone;
    if (due && starts_sample(meter, stream, now))
        stream->sample = SAMPLE_LAUNCHES;
    return due;
}

static CUevent take_event(struct meter *meter, uint32_t place, uint64_t context)
{
    CUevent event = NULL;
    CUcontext current = NULL, wanted = (CUcontext)(uintptr_t)context;
    lock_take(&meter->lock);
    struct context_clock *clock = &meter->contexts[place];
    if (clock->context == context && clock->pooled)
        event = clock->pool[--clock->pooled];
    lock_drop(&meter->lock);
    if (event)
        return event;
    bool other = REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || current != wanted;
    if (other && REAL(cuCtxPushCurrent_v2)(wanted) != CUDA_SUCCESS)
        return NULL;
    bool made = REAL(cuEventCreate)(&event, 0) == CUDA_SUCCESS;
    if (made && !own_event_add(event, context))
        REAL(cuEventDestroy_v2)(event), made = false;
    if (other)
        REAL(cuCtxPopCurrent_v2)(&current);
    return made ? event : NULL;
}

/* The lock is held. What there is no room for is left to the context's end. */
static void give_event(struct meter *meter, const struct stream *stream, CUevent event)
{
    if (stream->place == METER_CONTEXTS)
        return;
    struct context_clock *clock = &meter->contexts[stream->place];
    if (event && clock->context == stream->context && clock->pooled < METER_POOL)
        clock->pool[clock->pooled++] = event;
}

void marks_drop(struct meter *meter, struct stream *stream)
{
    for (; stream->count; stream->count--, stream->head++)
        give_event(meter, stream, stream->ring[stream->head % METER_MARKS].event);
}

/* False: it is not, or it may have come into a capture that began meanwhile, and the device would never reach it. */
static bool record(CUevent event, CUstream handle, struct mark *mark)
{
    uint64_t captures = capture_begins();
    int mode = capture_leave();
    mark->event = event;
    mark->called = now_ns(CLOCK_MONOTONIC);
    bool recorded = !capture_has(handle) && REAL(cuEventRecord)(event, handle) == CUDA_SUCCESS;
    capture_return(mode);
    return recorded && capture_is_same(captures);
}

/* The lock is held, and there is room. */
static void add_mark(struct stream *stream, struct mark mark)
{
    mark.recorded = now_ns(CLOCK_MONOTONIC);
    stream->ring[(stream->head + stream->count++) % METER_MARKS] = mark;
    stream->marked = mark.launches;
    stream->since = mark.recorded; /* or a little later, if nothing was launched meanwhile */
}

bool mark_put(struct meter *meter, CUstream handle, uint64_t key, uint64_t context, uint64_t thread)
{
    uint64_t made = 0;
    uint32_t place = METER_CONTEXTS;
    lock_take(&meter->lock);
    struct stream *stream = stream_find(meter, key, context, thread);
    if (stream && stream->made > stream->marked) {
        made = stream->made;
        place = stream->place;
    }
    lock_drop(&meter->lock);
    CUevent event = place < METER_CONTEXTS ? take_event(meter, place, context) : NULL;
    if (!event)
        return false;
    struct mark mark = {.launches = made};
    bool recorded = record(event, handle, &mark);
    lock_take(&meter->lock);
    stream = stream_find(meter, key, context, thread);
    bool room = recorded && stream && stream->count < METER_MARKS && stream->made >= made;
    if (room) {
        mark.first = stream->since;
        mark.sampled = made == stream->marked + 1;
        add_mark(stream, mark);
    } else if (stream) {
        give_event(meter, stream, event);
    }
    lock_drop(&meter->lock);
    return room;
}

/* The lock is held. But for this launch, none of the stream is between the gate and the end of the driver's call: it may
 * be on either side of a mark that is recorded now. */
static bool is_alone(const struct stream *stream)
{
    return stream && stream->begun == stream->made + 1 && stream->count < METER_MARKS &&
           stream->place < METER_CONTEXTS;
}

void mark_put_before(struct launch *launch)
{
    struct meter *meter = launch->meter;
    uint64_t key = (uintptr_t)launch->handle, context = launch->to.context, made = 0;
    lock_take(&meter->lock);
    struct stream *stream = stream_find(meter, key, context, launch->thread);
    bool alone = is_alone(stream);
    uint32_t place = alone ? stream->place : METER_CONTEXTS;
    made = alone ? stream->made : 0;
    lock_drop(&meter->lock);
    CUevent event = alone ? take_event(meter, place, context) : NULL;
    if (!event)
        return;
    struct mark mark = {.launches = made, .begins = true};
    bool recorded = record(event, launch->handle, &mark);
    lock_take(&meter->lock);
    stream = stream_find(meter, key, context, launch->thread);
    if (recorded && is_alone(stream) && stream->made == made)
        add_mark(stream, mark);
    else if (stream)
        give_event(meter, stream, event);
    lock_drop(&meter->lock);
}

/* The lock is held. The mark's event becomes what times are relative to. */
static void renew_origin(struct meter *meter, struct stream *stream, CUevent event, int64_t time)
{
    struct context_clock *clock = &meter->contexts[stream->place];
    give_event(meter, stream, clock->origin);
    clock->origin = event;
    clock->base += time;
    clock->floor += time;
}

/* The lock is held. When the device was at the mark, on our clock. */
static uint64_t bring_over(struct meter *meter, struct stream *stream, const struct mark *mark, int64_t time,
                           uint64_t now)
{
    struct context_clock *clock = &meter->contexts[stream->place];
    uint64_t before = mark->called > stream->still ? mark->called : stream->still;
    int64_t earliest = (int64_t)mark->recorded - time, latest = (int64_t)now - time;
    int64_t drift = clock->base_at ? (int64_t)(now - clock->base_at) / DRIFT : 0;
    int64_t base = clock->base_at ? clock->base + drift : latest, lowest = (int64_t)before - time;
    int64_t floor = clock->base_at ? clock->floor - drift : lowest;
    /* Rather too late than too early: what was seen soonest after it was reached says it best. */
    clock->base = base < latest ? base : latest;
    clock->floor = floor > lowest ? floor : lowest;
    clock->base = clock->base < earliest ? earliest : clock->base;
    clock->floor = clock->floor > clock->base ? clock->base : clock->floor;
    clock->base_at = now;
    uint64_t reached = (uint64_t)(clock->base + time);
    if (mark->begins) /* rather too early: what is behind it is charged from then on */
        stream->still = (uint64_t)(clock->floor + time);
    if (!clock->origin || time > ORIGIN_SECONDS * SECOND)
        renew_origin(meter, stream, mark->event, time);
    else
        give_event(meter, stream, mark->event);
    return reached;
}

/* The program may have put something in front of it that waits for the host: nobody waits here for that. The event may be
 * recorded again all the same. */
static CUresult wait_a_little(CUevent event, uint64_t since)
{
    struct timespec step = {.tv_nsec = IDLE_STEP_NS};
    CUresult result;
    while ((result = REAL(cuEventQuery)(event)) == CUDA_ERROR_NOT_READY) {
        uint64_t passed = now_ns(CLOCK_MONOTONIC) - since;
        if (passed > IDLE_NS)
            break;
        if (passed > IDLE_STEP_NS)
            syscall(SYS_nanosleep, &step, NULL);
    }
    return result;
}

/* The device has nothing to do: an event is reached as soon as it is recorded, which says best how the clocks differ. */
void marks_set_clock(struct meter *meter, CUstream handle, uint64_t context, uint64_t now)
{
    struct stream idle = {.context = context, .place = METER_CONTEXTS};
    float milliseconds = 0;
    lock_take(&meter->lock);
    for (uint32_t i = 0; i < METER_CONTEXTS; i++)
        if (meter->contexts[i].context == context && now - meter->contexts[i].set_at > SET_NS)
            idle.place = i;
    CUevent origin = idle.place < METER_CONTEXTS ? meter->contexts[idle.place].origin : NULL;
    if (idle.place < METER_CONTEXTS)
        meter->contexts[idle.place].set_at = now;
    lock_drop(&meter->lock);
    CUevent event = idle.place < METER_CONTEXTS ? take_event(meter, idle.place, context) : NULL;
    if (!event)
        return;
    int mode = capture_leave();
    struct mark mark = {.event = event, .called = now_ns(CLOCK_MONOTONIC)};
    CUresult result = REAL(cuEventRecord)(event, handle);
    mark.recorded = now_ns(CLOCK_MONOTONIC);
    if (result == CUDA_SUCCESS)
        result = wait_a_little(event, mark.recorded);
    uint64_t seen = now_ns(CLOCK_MONOTONIC);
    if (result == CUDA_SUCCESS && origin)
        result = REAL(cuEventElapsedTime)(&milliseconds, origin, event);
    capture_return(mode);
    lock_take(&meter->lock);
    struct context_clock *clock = &meter->contexts[idle.place];
    if (result == CUDA_SUCCESS && clock->context == context && clock->origin == origin)
        bring_over(meter, &idle, &mark, (int64_t)((double)milliseconds * 1e6), seen);
    else
        give_event(meter, &idle, event);
    lock_drop(&meter->lock);
}

/* The part of what was charged that was the device's, in 1/1024. */
static uint64_t density_of(const struct density *density, uint64_t now)
{
    if (!density->all || now - density->at > DENSITY_OLD_NS)
        return 1024;
    uint64_t part = density->busy * 1024 / density->all;
    return part < 1024 ? part : 1024;
}

static void learn(struct density *density, uint64_t busy, uint64_t all, uint64_t now)
{
    density->busy += busy < all ? busy : all;
    density->all += all;
    density->at = now;
    if (density->all > DENSITY_NS) {
        density->busy /= 2;
        density->all /= 2;
    }
}

/* The lock is held. The device came from one mark to the next. Where it reached the second long after that was recorded,
 * it had work all the time since the first launch between them. Else it may have waited for launches: where each is timed,
 * that is known, and for other such stretches as much is given back as those that were timed say. */
static void note_stretch(struct meter *meter, const struct stream *stream, const struct mark *mark,
                         uint64_t reached, uint64_t now)
{
    uint64_t before = stream->reached, from = mark->first > before ? mark->first : before;
    if (!before || reached <= before)
        return;
    uint64_t all = reached - before, busy = reached > from ? reached - from : 0;
    uint64_t launches = mark->launches > stream->ended ? mark->launches - stream->ended : 1;
    meter_prove(meter, busy / launches, from, reached);
    meter->density.full = reached >= mark->recorded + BACKLOG_NS;
    if (reached < mark->recorded + BACKLOG_NS && !mark->sampled) {
        uint64_t part = density_of(&meter->density, now) * meter->used;
        busy = all * (part < 1024 ? part : 1024) / 1024;
    } else if (mark->sampled && mark->first > before) {
        /* From the call to the first instruction. */
        uint64_t latency = atomic_load(&meter->latency);
        busy -= least(latency == UINT64_MAX ? 0 : latency / 2, busy / 2);
    }
    if (mark->sampled)
        learn(&meter->density, busy, all, now);
    if (meter->used == 1 || !mark->sampled)
        budget_refund(&meter->budget, meter->cores, all - busy);
}

/* The lock is held. The i-th stream of the table, if it is still that one, and the mark its first. */
static struct stream *still_first(struct meter *meter, uint32_t i, const struct stream *known, CUevent event)
{
    struct stream *stream = stream_find(meter, known->handle, known->context, known->thread);
    bool same = stream && stream == &meter->streams[i] && stream->count &&
                stream->ring[stream->head % METER_MARKS].event == event;
    return same ? stream : NULL;
}

/* The first mark of the i-th stream of the table, if the device has passed it. False: it has not, or what waited `began` with it. */
static bool read_mark(struct meter *meter, uint32_t i, bool *began)
{
    float milliseconds = 0;
    lock_take(&meter->lock);
    struct stream *stream = i < meter->room ? &meter->streams[i] : NULL;
    bool some = stream && stream_is_used(stream) && stream->count;
    struct mark mark = {0};
    struct stream known = {0};
    CUevent origin = NULL;
    if (some) {
        mark = stream->ring[stream->head % METER_MARKS];
        memcpy(&known, stream, offsetof(struct stream, ring));
        origin = meter->contexts[stream->place].origin;
    }
    lock_drop(&meter->lock);
    if (!some)
        return false;
    uint64_t asked = mark.begins ? now_ns(CLOCK_MONOTONIC) : 0;
    CUresult result = REAL(cuEventQuery)(mark.event);
    if (result == CUDA_ERROR_NOT_READY && !mark.begins)
        return false;
    if (result == CUDA_ERROR_NOT_READY) {
        lock_take(&meter->lock);
        if ((stream = still_first(meter, i, &known, mark.event)))
            stall_note(stream, asked);
        lock_drop(&meter->lock);
        return false;
    }
    if (result == CUDA_SUCCESS && origin)
        result = REAL(cuEventElapsedTime)(&milliseconds, origin, mark.event);
    uint64_t now = now_ns(CLOCK_MONOTONIC);
    lock_take(&meter->lock);
    if ((stream = still_first(meter, i, &known, mark.event))) {
        stream->head++;
        stream->count--;
        uint64_t reached = now;
        if (result == CUDA_SUCCESS) {
            reached = bring_over(meter, stream, &mark, (int64_t)((double)milliseconds * 1e6), now);
            if (!mark.begins)
                note_stretch(meter, stream, &mark, reached, now);
            stream->reached = reached;
        } else {
            give_event(meter, stream, mark.event);
            stream->reached = 0;
        }
        uint64_t ready = mark.recorded > stream->still ? mark.recorded : stream->still;
        stream_ended(meter, stream, mark.launches, reached, reached > ready ? reached - ready : 0);
    }
    lock_drop(&meter->lock);
    if (mark.begins && began)
        *began = true;
    return !mark.begins || !began;
}

/* Elapsed times can be asked for in a context only, and the calling thread may have none. */
void marks_read(struct meter *meter, bool *began)
{
    CUcontext current = NULL;
    bool nowhere = REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || !current;
    for (uint32_t i = 0; i < meter->room; i++) {
        lock_take(&meter->lock);
        bool some = i < meter->room && stream_is_used(&meter->streams[i]) && meter->streams[i].count;
        CUcontext context = some ? (CUcontext)(uintptr_t)meter->streams[i].context : NULL;
        lock_drop(&meter->lock);
        if (!some || (nowhere && REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS))
            continue;
        while (read_mark(meter, i, began))
            ;
        if (nowhere)
            REAL(cuCtxPopCurrent_v2)(&context);
    }
}
