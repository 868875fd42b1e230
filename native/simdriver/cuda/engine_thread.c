/* The thread of an engine, and what makes it look. */
#include "engine.h"

#include "order.h"
#include "stream.h"

#include <sys/prctl.h>

enum { TURN_NS = 1000000, VIRTUAL_SHUT_NS = 250000 };

#define NEVER UINT64_MAX

/* Defined where a test simulates time: there, nobody wakes who is stopped. */
extern void sim_clock_spend(uint64_t ns) __attribute__((weak));

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
    if (engine_step(device) < engine->asleep_until || ((engine->wants || engine->shut) && !engine->in_wait))
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
        uint64_t next = engine_step(device), now = sim_now();
        if (next <= now)
            continue;
        engine->asleep_until = next;
        if (engine->holding && together_is_used()) {
            engine->in_wait = true;
            pthread_mutex_unlock(&driver()->lock);
            together_wait(device, next - now);
            pthread_mutex_lock(&driver()->lock);
            engine->in_wait = false;
        } else if (engine->wants || engine->shut) {
            uint64_t most = engine->shut && sim_clock_spend ? VIRTUAL_SHUT_NS : TURN_NS;
            engine->in_wait = true;
            pthread_mutex_unlock(&driver()->lock);
            turn_wait(device, sooner(next - now, most));
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
    locked_pending(1);
    if (stream->head == op) /* else there is nothing to do yet */
        rouse(&device->engine, device);
    return CUDA_SUCCESS;
}
