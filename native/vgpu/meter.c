#include "meter.h"

#include "ledger.h"
#include "lease.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

enum {
    LOST_NS = 200000000, /* a thread that has been in a launch for so long may have left it by longjmp(3) */
    QUIET_NS = 10000000
};

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
    made = meter_pages(sizeof(*made));
    if (!made)
        return NULL;
    made->position = position;
    made->allowed = 2;
    made->latency = UINT64_MAX;
    syscall(SYS_getrandom, &made->density.random, sizeof(made->density.random), GRND_NONBLOCK);
    made->density.random |= 1;
    if (atomic_compare_exchange_strong(&process()->meters[position], &have, made)) {
        atomic_fetch_or(&process()->metered, UINT64_C(1) << position);
        return made;
    }
    munmap(made, sizeof(*made));
    return have;
}

/* A number that no other thread has, or had: one that comes later may get the address, or the id, of one that is gone. */
uint64_t this_thread(void)
{
    static _Atomic uint64_t last;
    static __thread uint64_t own;
    if (__builtin_expect(!own, 0))
        own = atomic_fetch_add(&last, 1) + 1;
    return own;
}

void meter_close_interval(struct meter *meter, uint64_t end, uint64_t next, uint64_t now)
{
    uint64_t busy = atomic_load(&meter->busy);
    atomic_store_explicit(&meter->busy, next, memory_order_release);
    atomic_store_explicit(&meter->charged, meter_charged(meter->position) + end - busy,
                          memory_order_release);
    budget_end(&meter->budget, meter->cores, end, now);
    if (next)
        budget_begin(&meter->budget, next);
}

/* The lock is held. The device is shown idle, so far as this process goes. */
void meter_close_if_idle(struct meter *meter, uint64_t now)
{
    uint64_t busy = atomic_load(&meter->busy);
    if (meter->used || meter->closing || !busy)
        return;
    meter_close_interval(meter, meter->latest > busy ? least(meter->latest, now) : busy, 0, now);
}

static void open_if_idle(struct meter *meter, uint64_t now)
{
    budget_open(&meter->budget, meter->position, now);
    if (atomic_load(&meter->busy))
        return;
    atomic_store(&meter->busy, now); /* before it is looked whether the thread that watches sleeps */
    meter->progress = now;
    budget_begin(&meter->budget, now);
    watch_start();
}

void note_pace(struct meter *meter, uint64_t launch)
{
    uint64_t pace = atomic_load_explicit(&meter->pace, memory_order_relaxed);
    atomic_store_explicit(&meter->pace, pace ? (3 * pace + launch) / 4 : launch, memory_order_relaxed);
}

void stream_ended(struct meter *meter, struct stream *stream, uint64_t launches, uint64_t end,
                  uint64_t waited)
{
    if (launches > stream->ended) {
        /* It began when it was launched. Of others, marks say how long they took. */
        if (launches == stream->ended + 1 && launches == stream->begun && stream->entered >= meter->latest)
            note_pace(meter, end > stream->entered ? end - stream->entered : 0);
        meter_adapt(meter, waited);
        meter->under_way -= (uint32_t)least(launches - stream->ended, meter->under_way);
        stream->ended = launches;
        meter->progress = end > meter->progress ? end : meter->progress;
        if (end > atomic_load_explicit(&meter->latest, memory_order_relaxed))
            atomic_store_explicit(&meter->latest, end, memory_order_release);
    }
    if (stream->ended == stream->begun)
        stream_forget(meter, stream);
}

static void end_before(struct meter *meter, struct stream *stream, uint64_t context, uint64_t serial,
                       uint64_t end)
{
    if (stream_is_used(stream) && stream->made == stream->begun && stream->serial <= serial &&
        (!context || stream->context == context))
        stream_ended(meter, stream, stream->made, end, end > stream->entered ? end - stream->entered : 0);
}

static void count_step(struct meter *meter, uint64_t now)
{
    budget_open(&meter->budget, meter->position, now);
    SHARED_ADD(meter->budget.shared->steps, 1);
}

bool meter_ended(struct meter *meter, uint64_t context, uint64_t handle, uint64_t thread, uint64_t serial,
                 uint64_t end, bool stepped)
{
    uint64_t now = end > meter->latest ? end : meter->latest;
    struct stream *stream;
    lock_take(&meter->lock);
    for (uint32_t i = 0; handle && meter->room && (stream = stream_at(meter, handle, i)); i++)
        if (stream->handle == handle && stream->thread == thread)
            end_before(meter, stream, context, serial, end);
    for (uint32_t i = 0; !handle && meter->used && i < meter->room; i++)
        end_before(meter, &meter->streams[i], context, serial, end);
    meter_close_if_idle(meter, now);
    stepped &= !atomic_load_explicit(&meter->busy, memory_order_relaxed);
    if (stepped)
        count_step(meter, now);
    lock_drop(&meter->lock);
    return stepped;
}

bool meter_begin(struct launch *launch)
{
    struct meter *meter = launch->meter;
    uint64_t handle = (uint64_t)(uintptr_t)launch->handle;
    struct stream *stream = stream_add(meter, handle, launch->to.context, launch->thread);
    if (!stream)
        return false;
    open_if_idle(meter, launch->now);
    if (stream->begun == stream->marked)
        stream->since = launch->now;
    stream->begun++;
    stream->entered = launch->now;
    meter->under_way++;
    meter->budget.stalled = false;
    if (atomic_load_explicit(&meter->stalled, memory_order_relaxed)) /* it is written under the lock */
        atomic_store(&meter->stalled, false);
    atomic_store_explicit(&meter->last_launch, launch->now, memory_order_relaxed);
    return true;
}

/* The lock is held. A kernel on an idle device begins when the driver's call is over:
 * what passes between is of the latency that is measured. */
static void begin_later(struct meter *meter, struct stream *stream, uint64_t at)
{
    if (at <= stream->since)
        return;
    stream->since = stream->entered = at;
    atomic_store_explicit(&meter->busy, at, memory_order_release);
    budget_begin(&meter->budget, at);
}

void meter_end(struct launch *launch, bool launched)
{
    struct meter *meter = launch->meter;
    uint64_t handle = (uint64_t)(uintptr_t)launch->handle, context = launch->to.context;
    bool due = false;
    lock_take(&meter->lock);
    struct stream *stream = stream_find(meter, handle, context, launch->thread);
    if (!stream && launched && (stream = stream_add(meter, handle, context, launch->thread))) {
        open_if_idle(meter, launch->now); /* the call took so long that it was given up */
        stream->begun++;
        stream->entered = stream->since = launch->now;
        meter->under_way++;
        atomic_store(&meter->stalled, false);
    }
    if (stream && launched) {
        stream->made += stream->made < stream->begun;
        stream->serial = atomic_load_explicit(&meter->serial, memory_order_relaxed) + 1;
        atomic_store_explicit(&meter->serial, stream->serial, memory_order_release);
        SHARED_ADD(meter->budget.shared->launches, 1);
        due = mark_is_due(meter, stream, launch->now);
        if (launch->prompt && meter->under_way == 1 && atomic_load(&meter->busy) == launch->now)
            begin_later(meter, stream, now_ns(CLOCK_MONOTONIC));
    } else if (stream) {
        stream->begun--;
        meter->under_way -= meter->under_way != 0;
        if (stream->begun == stream->ended)
            stream_forget(meter, stream);
        meter_close_if_idle(meter, now_ns(CLOCK_MONOTONIC));
    }
    lock_drop(&meter->lock);
    if (due)
        mark_put(meter, launch->handle, handle, context, launch->thread);
}

/* The lock is held. A thread that entered a launch long ago may never come back from it. */
static void give_up_lost(struct stream *stream, uint64_t now)
{
    if (stream->made != stream->begun && now > stream->entered && now - stream->entered > LOST_NS)
        stream->made = stream->begun;
}

/* Only its own thread can ask about a default stream of its own, and that may be gone. But the one of the context waits
 * for them all: a mark there is behind what is in them. It holds others up, so it is the last resort. */
static void ask_for_thread(struct meter *meter, const struct stream *stream)
{
    CUcontext context = (CUcontext)(uintptr_t)stream->context;
    if (stream->marked == stream->made || now_ns(CLOCK_MONOTONIC) - stream->entered < QUIET_NS ||
        REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return;
    mark_put(meter, (CUstream)(uintptr_t)1, stream->handle, stream->context, stream->thread);
    REAL(cuCtxPopCurrent_v2)(&context);
}

/* Asks the driver about the i-th stream of the table, without a lock. */
static void ask(struct meter *meter, uint32_t i, uint64_t off)
{
    CUcontext before = NULL;
    int capturing = 0;
    lock_take(&meter->lock);
    struct stream copy = {0};
    if (i < meter->room && stream_is_used(&meter->streams[i])) {
        give_up_lost(&meter->streams[i], now_ns(CLOCK_MONOTONIC));
        memcpy(&copy, &meter->streams[i], offsetof(struct stream, ring));
    }
    lock_drop(&meter->lock);
    bool mine = !copy.thread || copy.thread == this_thread();
    if (!copy.handle || copy.handle == STREAM_GONE || copy.made != copy.begun)
        return;
    if (!mine) {
        ask_for_thread(meter, &copy);
        return;
    }
    CUstream handle = (CUstream)(uintptr_t)copy.handle;
    bool fixed = copy.handle <= 2; /* a default stream is one of the current context */
    if (fixed && REAL(cuCtxPushCurrent_v2)((CUcontext)(uintptr_t)copy.context) != CUDA_SUCCESS)
        return;
    CUresult result = REAL(cuStreamIsCapturing)(handle, &capturing);
    if (result == CUDA_SUCCESS && !capturing)
        result = REAL(cuStreamQuery)(handle);
    bool busy = capturing || result == CUDA_ERROR_NOT_READY ||
                (result >= CUDA_ERROR_STREAM_CAPTURE && result <= CUDA_ERROR_STREAM_CAPTURE_LAST);
    if (fixed)
        REAL(cuCtxPopCurrent_v2)(&before);
    if (!busy)
        meter_ended(meter, copy.context, copy.handle, copy.thread, copy.serial,
                    now_ns(CLOCK_MONOTONIC) - off, false);
}

/* Before anything is given back of what is charged. */
static void charge_up_to(struct meter *meter, uint64_t now)
{
    lock_take(&meter->lock);
    if (atomic_load(&meter->busy)) {
        budget_open(&meter->budget, meter->position, now);
        budget_charge(&meter->budget, meter->cores, now);
    }
    lock_drop(&meter->lock);
}

bool meter_peek(struct meter *meter, uint64_t now)
{
    bool began = false; /* what waited is left to who looks at all */
    if (atomic_exchange_explicit(&meter->reading, true, memory_order_acquire))
        return false;
    charge_up_to(meter, now);
    int mode = capture_leave();
    marks_read(meter, &began);
    capture_return(mode);
    lock_take(&meter->lock);
    meter_close_if_idle(meter, now_ns(CLOCK_MONOTONIC));
    lock_drop(&meter->lock);
    atomic_store_explicit(&meter->reading, false, memory_order_release);
    return true;
}

bool meter_look(struct meter *meter, uint64_t now, uint64_t off)
{
    if (!atomic_load(&meter->busy))
        return true;
    if (atomic_exchange_explicit(&meter->reading, true, memory_order_acquire))
        return false;
    atomic_store_explicit(&meter->looked, now, memory_order_relaxed);
    charge_up_to(meter, now);
    int mode = capture_leave();
    bool began = false;
    marks_read(meter, &began);
    if (began) {
        lock_take(&meter->lock);
        stall_leave_out(meter, now_ns(CLOCK_MONOTONIC)); /* before what began meanwhile ends */
        lock_drop(&meter->lock);
        marks_read(meter, NULL);
    }
    for (uint32_t i = 0; atomic_load(&meter->busy) && i < meter->room; i++)
        ask(meter, i, off);
    capture_return(mode);
    lock_take(&meter->lock);
    uint64_t end = now_ns(CLOCK_MONOTONIC);
    meter_close_if_idle(meter, end);
    stall_leave_out(meter, end);
    meter->budget.stalled = stall_is_on(meter, now);
    atomic_store(&meter->stalled, meter->budget.stalled);
    lock_drop(&meter->lock);
    atomic_store_explicit(&meter->reading, false, memory_order_release);
    return true;
}

void meter_stepped(struct meter *meter, uint64_t now)
{
    lock_take(&meter->lock);
    count_step(meter, now);
    lock_drop(&meter->lock);
}

bool meter_is_idle(int position)
{
    struct meter *meter = meter_of(position);
    if (meter && atomic_load(&meter->busy))
        meter_look(meter, now_ns(CLOCK_MONOTONIC), 0);
    return !meter || !atomic_load(&meter->busy);
}

bool meter_is_stalled(int position)
{
    struct meter *meter = meter_of(position);
    return meter && atomic_load(&meter->busy) && atomic_load(&meter->stalled);
}

uint64_t meter_left(int position)
{
    struct meter *meter = meter_of(position);
    uint64_t left = 0;
    if (!meter)
        return 0;
    lock_take(&meter->lock);
    uint64_t now = now_ns(CLOCK_MONOTONIC), all = meter->pace * meter->under_way;
    uint64_t passed = now > meter->progress ? now - meter->progress : 0;
    left = all > passed ? all - passed : 0;
    lock_drop(&meter->lock);
    return left;
}

uint64_t meter_pace(int position)
{
    struct meter *meter = meter_of(position);
    return meter ? atomic_load_explicit(&meter->pace, memory_order_relaxed) : 0;
}

uint64_t meter_charged(int position)
{
    struct meter *meter = meter_of(position);
    return meter ? atomic_load(&meter->charged) : 0;
}

uint64_t meter_used(int position, uint64_t now)
{
    struct meter *meter = meter_of(position);
    uint64_t busy = meter ? atomic_load(&meter->busy) : 0;
    return meter_charged(position) + (busy && now > busy ? now - busy : 0);
}

void meter_refund(int position, uint64_t time)
{
    struct meter *meter = time ? meter_of(position) : NULL;
    if (!meter)
        return;
    lock_take(&meter->lock);
    budget_open(&meter->budget, position, now_ns(CLOCK_MONOTONIC));
    budget_refund(&meter->budget, meter->cores, time);
    budget_wake(&meter->budget);
    lock_drop(&meter->lock);
}

uint64_t meter_last_launch(int position)
{
    struct meter *meter = meter_of(position);
    return meter ? atomic_load(&meter->last_launch) : 0;
}

uint64_t meter_last_work(int position)
{
    struct meter *meter = meter_of(position);
    uint64_t launch = meter_last_launch(position), end = meter ? atomic_load(&meter->latest) : 0;
    return end > launch ? end : launch;
}
