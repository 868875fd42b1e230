#include "order.h"

#include "stream.h"

enum { TOGETHER_NS = 200000 };

bool is_blocking(const struct stream *stream)
{
    return !(stream->flags & CU_STREAM_NON_BLOCKING);
}

bool must_wait_for_others(const struct stream *stream, uint64_t sequence)
{
    const struct stream *legacy = stream->context->legacy;
    if (!is_blocking(stream))
        return false;
    if (stream != legacy)
        return legacy->head && legacy->head->sequence < sequence;
    for (const struct stream *other = stream->context->device->streams; other; other = other->next)
        if (other->context == stream->context && other != stream && is_blocking(other) && other->head &&
            other->head->sequence < sequence)
            return true;
    return false;
}

uint64_t start_of(const struct op *op)
{
    const struct stream *stream = op->stream;
    uint64_t start = later(op->submitted, stream->time);
    if (is_blocking(stream))
        start = later(start, stream == stream->context->legacy ? stream->context->blocking_time
                                                               : stream->context->legacy_time);
    return start;
}

/* Nobody learns of its end but by asking, which finds out what has ended by then. */
static bool is_silent(const struct op *op)
{
    if (op->kind == OP_RECORD)
        return !op->run && !op->awaited && !op->exec && !op->event->awaited;
    return op->kind == OP_KERNEL && !op->run && !op->ready && !op->awaited && !op->exec;
}

uint64_t undisturbed(struct engine *engine, const struct op *op)
{
    uint64_t spent = engine->clock - engine->slice_start, length = turn_length(op->stream->context->device),
             most = spent < length ? length - spent : 0;
    uint64_t first = op->remaining, ns = first;
    most = sooner(most, TOGETHER_NS);
    while (ns < most && is_silent(op) && op->next &&
           (op->next->kind == OP_KERNEL || op->next->kind == OP_RECORD)) {
        op = op->next;
        ns += op->duration;
    }
    ns = later(first, sooner(ns, most));
    engine->late |= ns > first;
    return ns;
}
