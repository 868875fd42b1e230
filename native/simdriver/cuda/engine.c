#include "engine.h"

#include "memory.h"
#include "order.h"
#include "rm.h"
#include "stream.h"

enum { POLL_NS = 50000 };

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
    locked_pending(-1);
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

/* The channels are gone: what runs on them, or is to run, ends and does nothing. */
static void fail_kernel(struct op *op)
{
    op->remaining = op->duration = 0;
    op->run = NULL;
    op->ready = NULL;
    context_fail(op->stream->context, CUDA_ERROR_LAUNCH_FAILED);
}

static void fail_lost(struct device *device)
{
    for (uint32_t i = 0; i < device->engine.running_count; i++)
        if (gate_is_lost(device->engine.running[i]->stream->context))
            fail_kernel(device->engine.running[i]);
}

static void start_kernel(struct engine *engine, struct op *op, uint64_t start)
{
    if (engine->running_count == 0)
        engine->clock = later(start, engine->clock);
    op->state = OP_RUNNING;
    if (gate_is_lost(op->stream->context))
        fail_kernel(op);
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
    if (!engine->running_count)
        start = gate_opens(device, later(start, engine->clock));
    if (!held)
        engine->slice_start = later(start, engine->clock);
    uint64_t change = engine->running_count ? 0 : turn_change(device);
    if (!engine->running_count)
        gate_switch(op->stream->context, start, start + change);
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
        if (engine->clock >= engine->slice_start + turn_length(device)) {
            engine->slice_start = engine->clock;
            if (turn_is_wanted(device)) {
                engine->holding = false;
                turn_pass(device, true);
            }
        }
        uint64_t end = engine->slice_start + turn_length(device), look = gate_look(device);
        *next = sooner(*next, end > now ? end : now + turn_length(device));
        *next = sooner(*next, look < NEVER - now ? now + look : NEVER);
    }
    if (!engine->holding && engine->running_count && turn_hold(device, now)) {
        uint64_t end = engine->clock;
        engine->clock += turn_change(device);
        engine->slice_start = engine->clock;
        gate_switch(engine->running[0]->stream->context, end, engine->clock);
        *next = now;
    }
    if (!engine->holding && !engine->wants && engine->queued)
        turn_withdraw(device);
}

/* Gives up the turn once we are stopped. Returns when that is. */
static uint64_t obey(struct device *device)
{
    struct engine *engine = &device->engine;
    uint64_t until;
    if (!engine->holding || together_is_used() || gate_is_open(device, engine->clock, &until))
        return engine->holding && !together_is_used() ? until : NEVER;
    engine->holding = false;
    gate_stopped(device, engine->clock);
    turn_pass(device, false);
    return NEVER;
}

uint64_t engine_step(struct device *device)
{
    struct engine *engine = &device->engine;
    uint64_t now = sim_now(), next;
    bool changed;
    engine->stepping = true;
    if (engine->holding && !together_is_used() && !turn_is_mine(device))
        engine->holding = false; /* we were taken for dead */
    engine->wants = engine->shut = false;
    engine->opens = NEVER;
    fail_lost(device);
    do {
        uint64_t until = obey(device);
        next = NEVER;
        engine->late = false;
        changed = step_streams(device, now, &next);
        if (!changed)
            changed = step_kernels(device, sooner(sooner(now, next), until), &next);
        if (!changed && until <= now && engine->running_count && engine->clock >= until)
            changed = true;
        next = sooner(next, until > now ? until : NEVER);
        /* Time passed up to an operation that can begin now. */
        if (!changed && next <= now && engine->holding && engine->clock >= next)
            changed = true;
        changed = changed || together_look(device); /* what has passed did so at the speed that was known */
    } while (changed);
    step_turn(device, now, &next);
    engine->stepping = false;
    return sooner(next, engine->shut ? engine->opens : NEVER);
}
