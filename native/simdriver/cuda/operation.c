/* Operations as objects, waiting for them, and functions of the program that run in streams. */
#include "engine.h"
#include "graph.h"
#include "memory.h"
#include "stream.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct op *op_new(enum op_kind kind, size_t size)
{
    static const int node_types[] = {
        [OP_NOTHING] = CU_GRAPH_NODE_TYPE_EMPTY,       [OP_KERNEL] = CU_GRAPH_NODE_TYPE_KERNEL,
        [OP_COPY] = CU_GRAPH_NODE_TYPE_MEMCPY,         [OP_HOST] = CU_GRAPH_NODE_TYPE_HOST,
        [OP_RECORD] = CU_GRAPH_NODE_TYPE_EVENT_RECORD, [OP_WAIT] = CU_GRAPH_NODE_TYPE_WAIT_EVENT,
        [OP_FREE] = CU_GRAPH_NODE_TYPE_MEM_FREE,       [OP_POLL] = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
        [OP_CHOOSE] = CU_GRAPH_NODE_TYPE_CONDITIONAL,
    };
    struct op *op = calloc(1, sizeof(*op) + size);
    if (op) {
        op->kind = kind;
        op->node_type = node_types[kind];
        op->size = size;
        op->share = FULL_SHARE;
    }
    return op;
}

/* A fresh operation of the same pattern: nothing of its life in a stream is kept. */
struct op *op_copy(const struct op *op)
{
    struct op *copy = op_new(op->kind, op->size);
    if (!copy)
        return NULL;
    copy->node_type = op->node_type;
    copy->duration = op->duration;
    copy->share = op->share;
    copy->run = op->run;
    copy->ready = op->ready;
    copy->memory = op->memory;
    copy->event = op->event;
    if (copy->event)
        copy->event->references++;
    memcpy(op_data(copy), op_data(op), op->size);
    return copy;
}

void op_free(struct op *op)
{
    if (op && op->event)
        event_release(op->event);
    if (op && op->exec)
        graph_exec_done(op->exec);
    free(op);
}

void engine_wait_change(void)
{
    driver()->waiting++;
    pthread_cond_wait(&driver()->changed, &driver()->lock);
    driver()->waiting--;
}

/* Waits for the work of now, not for what other threads submit meanwhile. The stream may end while we wait. */
void engine_wait_stream(struct stream *stream)
{
    uint64_t last = stream->tail ? stream->tail->sequence : 0;
    if (last) {
        stream->tail->awaited = true;
        engine_look(stream->context->device);
    }
    while (last && handle_is(stream, KIND_STREAM) && stream->head && stream->head->sequence <= last)
        engine_wait_change();
}

static bool has_work_until(const struct context *context, uint64_t last)
{
    for (const struct stream *stream = context->device->streams; stream; stream = stream->next)
        if (stream->context == context && stream->head && stream->head->sequence <= last)
            return true;
    return false;
}

void engine_wait_context(struct context *context)
{
    uint64_t last = context->sequence;
    for (struct stream *stream = context->device->streams; stream; stream = stream->next)
        if (stream->context == context && stream->tail)
            stream->tail->awaited = true;
    engine_look(context->device);
    while (handle_is(context, KIND_CONTEXT) && has_work_until(context, last))
        engine_wait_change();
    if (handle_is(context, KIND_CONTEXT))
        pool_settle(context->device);
}

void engine_wait_device(struct device *device)
{
    for (struct context *context = driver()->contexts; context;) {
        uint64_t id = context->id;
        if (context->device == device)
            engine_wait_context(context);
        /* The list may have changed while we waited: begin again behind the one that we did. */
        context = driver()->contexts;
        while (context && context->id >= id)
            context = context->next;
    }
}

void engine_wait_event(struct event *event, uint64_t generation)
{
    event->references++;
    event->awaited++;
    engine_look(event->context->device);
    while (event->done < generation)
        engine_wait_change();
    event->awaited--;
    event_release(event);
}

/* Operations that wait for something that may never come are dropped, so that a context can always end. */
void engine_drain_context(struct context *context)
{
    for (struct stream *stream = context->device->streams; stream; stream = stream->next)
        if (stream->context == context)
            for (struct op *op = stream->head; op; op = op->next) {
                op->ready = NULL;
                if (op->kind == OP_CHOOSE)
                    op->kind = OP_NOTHING; /* a loop may have no end */
            }
    pthread_cond_signal(&context->device->engine.wake);
    engine_wait_context(context);
}

/* A thread for functions of the program: they may wait for work of other streams, so no engine runs them. */
static void *host_main(void *argument)
{
    struct driver *in = argument;
    pthread_mutex_lock(&in->lock);
    for (;;) {
        struct op *op = in->host_first;
        if (!op) {
            pthread_cond_wait(&in->host_wake, &in->lock);
            continue;
        }
        in->host_first = op->next_host;
        pthread_mutex_unlock(&in->lock);
        op->run(op);
        pthread_mutex_lock(&in->lock);
        op->state = OP_DONE;
        pthread_cond_signal(&op->stream->context->device->engine.wake);
    }
    return NULL;
}

CUresult thread_start(pthread_t *thread, void *(*run)(void *), void *argument)
{
    sigset_t all, before;
    sigfillset(&all); /* the program's signals are the program's */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

CUresult host_functions_ready(void)
{
    struct driver *in = driver();
    pthread_t thread;
    if (!in->host_started)
        CU_TRY(thread_start(&thread, host_main, in));
    in->host_started = true;
    return CUDA_SUCCESS;
}

void host_function_start(struct op *op)
{
    struct op **end = &driver()->host_first;
    while (*end)
        end = &(*end)->next_host;
    *end = op;
    pthread_cond_signal(&driver()->host_wake);
}
