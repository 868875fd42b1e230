/* Streams and contexts that end with unfinished work. */
#include "meter.h"
#include "own_events.h"

static bool close_context(struct meter *meter, uint64_t context)
{
    bool unfinished = false;
    lock_take(&meter->lock);
    for (uint32_t i = 0; i < meter->room; i++) {
        struct stream *stream = &meter->streams[i];
        if (!stream_is_used(stream) || stream->context != context)
            continue;
        unfinished = true;
        stream_forget(meter, stream);
    }
    meter->closing += unfinished;
    for (uint32_t i = 0; i < METER_CONTEXTS; i++)
        if (meter->contexts[i].context == context)
            meter->contexts[i] = (struct context_clock){0}; /* its events end with it */
    lock_drop(&meter->lock);
    return unfinished;
}

uint64_t meter_close_context(uint64_t context)
{
    uint64_t unfinished = 0;
    if (process())
        atomic_fetch_add(&process()->streams_ended, 1);
    own_events_end(context);
    for (int i = 0; i < VGPU_DEVICES; i++)
        if (meter_of(i) && close_context(meter_of(i), context))
            unfinished |= UINT64_C(1) << i;
    return unfinished;
}

void meter_closed_context(uint64_t positions)
{
    for (int i = 0; i < VGPU_DEVICES; i++) {
        struct meter *meter = positions >> i & 1 ? meter_of(i) : NULL;
        if (!meter)
            continue;
        uint64_t now = now_ns(CLOCK_MONOTONIC);
        lock_take(&meter->lock);
        meter->closing--;
        meter->latest = now;
        meter_close_if_idle(meter, now);
        lock_drop(&meter->lock);
    }
}

/* What runs in it is known by a mark from here on; where there can be none, its end is waited for. */
static void close_stream(struct meter *meter, const struct stream *stream)
{
    CUstream handle = (CUstream)(uintptr_t)stream->handle;
    bool known =
        stream->marked == stream->made || mark_put(meter, handle, stream->handle, stream->context, 0);
    if (!known)
        REAL(cuStreamSynchronize)(handle);
    lock_take(&meter->lock);
    struct stream *found = stream_find(meter, stream->handle, stream->context, 0), copy;
    if (found) {
        copy = *found;
        found->count = 0; /* its marks go along */
        stream_forget(meter, found);
        found = known ? stream_add(meter, STREAM_GONE, copy.context, ++meter->serial) : NULL;
    }
    if (found) {
        copy.handle = found->handle;
        copy.thread = found->thread;
        copy.begun = copy.made = copy.marked;
        meter->under_way += (uint32_t)(copy.begun - copy.ended);
        *found = copy;
    }
    meter_close_if_idle(meter, now_ns(CLOCK_MONOTONIC));
    lock_drop(&meter->lock);
}

void meter_close_stream(CUstream handle)
{
    int capturing = 0;
    if (process())
        atomic_fetch_add(&process()->streams_ended, 1);
    for (int position = 0; position < VGPU_DEVICES; position++) {
        struct meter *meter = meter_of(position);
        for (uint32_t i = 0; meter && i < meter->room; i++) {
            struct stream copy;
            lock_take(&meter->lock);
            copy = meter->streams[i];
            lock_drop(&meter->lock);
            if (copy.handle == (uint64_t)(uintptr_t)handle &&
                REAL(cuStreamIsCapturing)(handle, &capturing) == CUDA_SUCCESS && !capturing)
                close_stream(meter, &copy);
        }
    }
}
