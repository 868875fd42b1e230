#include "engine.h"

#include "memory.h"
#include "order.h"
#include "stream.h"

#include <sys/prctl.h>

enum { POLL_NS = 50000, TURN_NS = 1000000 };

#define NEVER UINT64_MAX

/* Wakes other engines too: an operation of another device may have waited for this one. */
static void announce(void)
{
    if (driver()->waiting)
        pthread_cond_broadcast(&driver()->changed);
    for (struct device *one = driver()->devices; one < driver()->devices + driver()->device_count; one++)
        if (one->engine.started && !one->engine.stepping)
            pthread_cond_signal(&one->engine.wake);
}

static void complete(struct op *op, uint64_t time)
{
    struct stream *stream = op->stream;
    stream->time = later(stream->time, time);
    if (stream == stream->context->legacy)
        stream->context->legacy_time = later(stream->context->legacy_time, time);
    else if (is_blocking(stream))
        stream->context->blocking_time = later(stream->context->blocking_time, time);
    if (op->kind == OP_RECORD && op->generation > op->event->done) {
        op->event->done = op->generation;
        op->event->time = time;
    }
    if (op->kind == OP_RECORD && time > op->submitted) /* behind other work */
        stream->time = later(stream->time, time + EVENT_NS);
    stream->head = op->next;
    if (!stream->head)
        stream->tail = NULL;
    stream->depth--;
    op_free(op);
    if (stream->dead && !stream->head)
        stream_remove(stream);
    announce();
}

/* What the operation does to memory happens without the lock: the head of a stream is nobody else's business. */
static void run_effect(struct op *op)
{
    if (!op->run)
        return;
    if (op->kind == OP_FREE) {
        op->run(op);
        return;
    }
    pthread_mutex_unlock(&driver()->lock);
    op->run(op);
    pthread_mutex_lock(&driver()->lock);
}

static void start_kernel(struct engine *engine, struct op *op, uint64_t start)
{
    if (engine->running_count == 0)
        engine->clock = later(start, engine->clock);
    op->state = OP_RUNNING;
    op->remaining = op->duration;
    engine->running[engine->running_count++] = op;
    engine->load += op->share;
}

/* A kernel begins when the turn is ours and its share of the GPU is free; otherwise `next` says when to look. */
static bool try_kernel(struct device *device, struct op *op, uint64_t now, uint64_t *next)
{
    struct engine *engine = &device->engine;
    uint64_t start = start_of(op);
    if (engine->running_count == MAX_RUNNING ||
        (engine->running_count && engine->load + op->share > FULL_SHARE))
        return false;
    if (engine->running_count && start > engine->clock) {
        *next = sooner(*next, start);
        return false;
    }
    bool held = engine->holding;
    if (!turn_hold(device, now))
        return false;
    if (!held)
        engine->slice_start = later(start, engine->clock);
    uint64_t change = engine->running_count ? 0 : turn_change(device);
    if (change)
        engine->clock = engine->slice_start = later(start, engine->clock) + change;
    start_kernel(engine, op, start);
    return true;
}

static bool step_copy(struct engine *engine, struct op *op, uint64_t now, uint64_t *next)
{
    if (op->state == OP_QUEUED) {
        op->state = OP_RUNNING;
        op->finish = later(start_of(op), engine->copies_end) + op->duration;
        engine->copies_end = op->finish;
    }
    if (op->finish > now) {
        *next = sooner(*next, op->finish);
        return false;
    }
    run_effect(op);
    complete(op, op->finish);
    return true;
}

/* Advances the operation at the head of a stream. Returns whether anything changed. */
static bool step_head(struct device *device, struct op *op, uint64_t now, uint64_t *next)
{
    uint64_t start = start_of(op);
    if (op->state == OP_RUNNING && op->kind != OP_COPY && op->kind != OP_HOST)
        return false; /* a kernel */
    if (op->state == OP_QUEUED && must_wait_for_others(op->stream, op->sequence))
        return false;
    if (op->state == OP_QUEUED && turn_is_needed(op)) {
        if (!turn_hold(device, now)) {
            *next = sooner(*next, now + POLL_NS);
            return false;
        }
        start = later(start, device->engine.held_since);
    }
    switch (op->kind) {
    case OP_KERNEL:
        return try_kernel(device, op, now, next);
    case OP_COPY:
        return step_copy(&device->engine, op, now, next);
    case OP_HOST:
        if (op->state == OP_QUEUED) {
            op->state = OP_RUNNING;
            host_function_start(op);
        } else if (op->state == OP_DONE) {
            complete(op, now);
            return true;
        }
        return false;
    case OP_WAIT:
        if (op->event->done < op->generation)
            return false;
        complete(op, later(start, op->event->time));
        return true;
    case OP_POLL:
        if (op->ready && !op->ready(op)) {
            *next = sooner(*next, now + POLL_NS);
            return false;
        }
        run_effect(op);
        complete(op, op->ready ? later(start, now) : start);
        return true;
    case OP_CHOOSE:
        if (start + CHOICE_NS > now) { /* a loop may have no end, and nothing else in it */
            *next = sooner(*next, start + CHOICE_NS);
            return false;
        }
        graph_choose(op);
        complete(op, start + CHOICE_NS);
        return true;
    case OP_FREE:
    case OP_NOTHING:
    case OP_RECORD:
        run_effect(op);
        complete(op, start);
        return true;
    }
    return false;
}

static bool step_streams(struct device *device, uint64_t now, uint64_t *next)
{
    for (struct stream *stream = device->streams; stream; stream = stream->next)
        if (stream->head && step_head(device, stream->head, now, next))
            return true; /* the list may have changed */
    return false;
}

static void finish_kernel(struct engine *engine, uint32_t index)
{
    struct op *op = engine->running[index];
    engine->load -= op->share;
    engine->running[index] = engine->running[--engine->running_count];
    run_effect(op);
    complete(op, engine->clock);
}

/* Lets `ns` of GPU time pass for all kernels that run. */
static void spend(struct device *device, uint64_t ns)
{
    struct engine *engine = &device->engine;
    uint64_t work = together_does(engine, ns);
    engine->clock += ns;
    ledger_busy(device, ns);
    for (uint32_t i = 0; i < engine->running_count; i++)
        engine->running[i]->remaining -= sooner(work, engine->running[i]->remaining);
}

/* Advances running kernels up to `until`. Returns whether one ended. */
static bool step_kernels(struct device *device, uint64_t until, uint64_t *next)
{
    struct engine *engine = &device->engine;
    uint64_t shortest = NEVER;
    if (!engine->holding || !engine->running_count)
        return false;
    for (uint32_t i = 0; i < engine->running_count; i++)
        shortest = sooner(shortest, engine->running[i]->remaining);
    if (until > engine->clock)
        spend(device, sooner(until - engine->clock, together_takes(engine, shortest)));
    for (uint32_t i = 0; i < engine->running_count; i++) {
        struct op *op = engine->running[i];
        if (op->remaining)
            continue;
        if (!op->ready || op->ready(op)) {
            finish_kernel(engine, i);
            return true;
        }
        op->remaining = POLL_NS; /* it spins */
    }
    for (uint32_t i = 0; i < engine->running_count; i++)
        *next =
            sooner(*next, engine->clock + together_takes(engine, undisturbed(engine, engine->running[i])));
    return false;
}

/* Keeps, takes or passes on the turn after a step. */
static void step_turn(struct device *device, uint64_t now, uint64_t *next)
{
    struct engine *engine = &device->engine;
    if (together_is_used()) {
        if (engine->holding && !engine->running_count) {
            engine->holding = false;
            together_end(device);
        }
        return;
    }
    if (engine->holding && !engine->running_count) {
        engine->holding = false;
        turn_pass(device, engine->wants);
    } else if (engine->holding) {
        turn_report(device);
        if (engine->clock >= engine->slice_start + turn_length()) {
            engine->slice_start = engine->clock;
            if (turn_is_wanted(device)) {
                engine->holding = false;
                turn_pass(device, true);
            }
        }
        uint64_t end = engine->slice_start + turn_length();
        *next = sooner(*next, end > now ? end : now + turn_length());
    }
    if (!engine->holding && engine->running_count && turn_hold(device, now)) {
        engine->clock += turn_change(device);
        engine->slice_start = engine->clock;
        *next = now;
    }
    if (!engine->holding && !engine->wants && engine->queued)
        turn_withdraw(device);
}

/* Does all that is due and returns when there is more, on the clock of sim_now. */
static uint64_t step(struct device *device)
{
    struct engine *engine = &device->engine;
    uint64_t now = sim_now(), next;
    bool changed;
    engine->stepping = true;
    if (engine->holding && !together_is_used() && !turn_is_mine(device))
        engine->holding = false; /* we were taken for dead */
    engine->wants = false;
    do {
        next = NEVER;
        engine->late = false;
        changed = step_streams(device, now, &next);
        if (!changed)
            changed = step_kernels(device, sooner(now, next), &next);
        /* Time passed up to an operation that can begin now. */
        if (!changed && next <= now && engine->holding && engine->clock >= next)
            changed = true;
        changed = changed || together_look(device); /* what has passed did so at the speed that was known */
    } while (changed);
    step_turn(device, now, &next);
    engine->stepping = false;
    return next;
}

static void rouse(struct engine *engine, struct device *device)
{
    pthread_cond_signal(&engine->wake);
    if (engine->in_wait && together_is_used())
        together_nudge(device);
    else if (engine->in_wait)
        turn_nudge(device);
}

void engine_catch_up(struct device *device)
{
    struct engine *engine = &device->engine;
    if (!engine->started || engine->stepping)
        return;
    if (step(device) < engine->asleep_until || (engine->wants && !engine->in_wait))
        rouse(engine, device);
}

void engine_look(struct device *device)
{
    if (device->engine.late)
        rouse(&device->engine, device);
}

static void *engine_main(void *argument)
{
    struct device *device = argument;
    struct engine *engine = &device->engine;
    prctl(PR_SET_NAME, "cuda-sim");
    prctl(PR_SET_TIMERSLACK, 1);
    pthread_mutex_lock(&driver()->lock);
    for (;;) {
        engine->asleep_until = NEVER;
        while (engine->stepping)
            pthread_cond_wait(&engine->wake, &driver()->lock);
        uint64_t next = step(device), now = sim_now();
        if (next <= now)
            continue;
        engine->asleep_until = next;
        if (engine->holding && together_is_used()) {
            engine->in_wait = true;
            pthread_mutex_unlock(&driver()->lock);
            together_wait(device, next - now);
            pthread_mutex_lock(&driver()->lock);
            engine->in_wait = false;
        } else if (engine->wants) {
            engine->in_wait = true;
            pthread_mutex_unlock(&driver()->lock);
            turn_wait(device, sooner(next - now, TURN_NS));
            pthread_mutex_lock(&driver()->lock);
            engine->in_wait = false;
        } else if (next == NEVER) {
            pthread_cond_wait(&engine->wake, &driver()->lock);
        } else {
            struct timespec until;
            clock_gettime(CLOCK_MONOTONIC, &until); /* in a time namespace, another one than sim_now */
            next = next - now + (uint64_t)until.tv_sec * 1000000000 + (uint64_t)until.tv_nsec;
            until = (struct timespec){.tv_sec = (time_t)(next / 1000000000),
                                      .tv_nsec = (long)(next % 1000000000)};
            pthread_cond_timedwait(&engine->wake, &driver()->lock, &until);
        }
    }
    return NULL;
}

static CUresult start_engine(struct device *device)
{
    if (!device->engine.started)
        CU_TRY(thread_start(&device->engine.thread, engine_main, device));
    device->engine.started = true;
    return CUDA_SUCCESS;
}

CUresult engine_submit(struct stream *stream, struct op *op)
{
    struct device *device = stream->context->device;
    CUresult result = op ? start_engine(device) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS && stream->capture)
        return capture_add(stream, op);
    if (result == CUDA_SUCCESS)
        result = capture_allows_work(stream);
    if (result != CUDA_SUCCESS) {
        op_free(op);
        return result;
    }
    while (stream->depth >= QUEUE_DEPTH)
        engine_wait_change();
    op->stream = stream;
    op->sequence = ++stream->context->sequence;
    op->submitted = sim_now();
    if (op->event)
        op->generation = op->kind == OP_RECORD ? ++op->event->recorded : op->event->recorded;
    if (stream->tail)
        stream->tail->next = op;
    else
        stream->head = op;
    stream->tail = op;
    stream->depth++;
    if (stream->head == op) /* else there is nothing to do yet */
        rouse(&device->engine, device);
    return CUDA_SUCCESS;
}
