/* Events. */
#include "engine.h"
#include "memory.h"
#include "stream.h"

#include <stdlib.h>

struct event *event_of(CUevent handle)
{
    return handle_is(handle, KIND_EVENT) ? handle : NULL;
}

/* The handle is one reference, each operation another: an event may be destroyed while it is waited for. */
void event_release(struct event *event)
{
    if (--event->references)
        return;
    free(event->captured);
    handle_free(event);
}

CUresult event_create(struct context *context, unsigned int flags, struct event **out)
{
    struct event *event = handle_new(KIND_EVENT, sizeof(*event));
    CU_REQUIRE(event, CUDA_ERROR_OUT_OF_MEMORY);
    event->context = context;
    event->flags = flags;
    event->references = 1;
    *out = event;
    return CUDA_SUCCESS;
}

static CUresult create(CUevent *out, unsigned int flags)
{
    CU_CONTEXT(context);
    CU_ARGUMENT(out && !(flags & ~7u));
    CU_ARGUMENT(!(flags & CU_EVENT_INTERPROCESS) || flags & CU_EVENT_DISABLE_TIMING);
    return event_create(context, flags, out);
}

CU_EXPORT(cuEventCreate, (CUevent * out, unsigned int flags), create(out, flags))

static CUresult destroy(CUevent handle)
{
    struct event *event = event_of(handle);
    CU_REQUIRE(event, CUDA_ERROR_INVALID_HANDLE);
    handle_forget(event);
    event_release(event);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuEventDestroy_v2, (CUevent event), destroy(event))
CU_EXPORT(cuEventDestroy, (CUevent event), destroy(event))

static void forget(void *object, void *context)
{
    struct event *event = object;
    if (event->context != context)
        return;
    handle_forget(event);
    event_release(event);
}

void events_destroy(struct context *context)
{
    handle_each(KIND_EVENT, forget, context);
}

struct op *op_event(enum op_kind kind, struct event *event)
{
    struct op *op = op_new(kind, 0);
    if (op) {
        op->event = event;
        event->references++;
    }
    return op;
}

static CUresult record(CUevent handle, CUstream on, unsigned int flags)
{
    CU_STREAM(stream, on);
    struct event *event = event_of(handle);
    CU_ARGUMENT(flags <= 1);
    CU_REQUIRE(event, CUDA_ERROR_INVALID_HANDLE);
    CU_REQUIRE(event->context == stream->context, CUDA_ERROR_INVALID_HANDLE);
    if (stream->capture)
        return flags ? engine_submit(stream, op_event(OP_RECORD, event)) : capture_record(stream, event);
    event->capture = NULL;
    return engine_submit(stream, op_event(OP_RECORD, event));
}

CU_TWINS(_ptsz, cuEventRecord, (CUevent event, CUstream stream), record(event, OWN(stream), 0))
CU_TWINS(_ptsz, cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned int flags),
         record(event, OWN(stream), flags))

/* Waiting for an event that was never recorded is no wait. */
static CUresult wait(CUstream on, CUevent handle, unsigned int flags)
{
    CU_STREAM(stream, on);
    struct event *event = event_of(handle);
    CU_ARGUMENT(flags <= 1);
    CU_REQUIRE(event, CUDA_ERROR_INVALID_HANDLE);
    if (event->capture)
        return capture_wait(stream, event);
    CU_REQUIRE(!stream->capture || flags, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    return engine_submit(stream, op_event(OP_WAIT, event));
}

CU_TWINS(_ptsz, cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags),
         wait(OWN(stream), event, flags))

static CUresult query(CUevent handle)
{
    const struct event *event = event_of(handle);
    CU_REQUIRE(event, CUDA_ERROR_INVALID_HANDLE);
    CU_REQUIRE(!event->capture, CUDA_ERROR_CAPTURED_EVENT);
    CU_TRY(capture_allows_unsafe());
    engine_catch_up(event->context->device);
    CU_REQUIRE(event->context->error == CUDA_SUCCESS, event->context->error);
    return event->done < event->recorded ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CU_EXPORT_RESIDENT(cuEventQuery, (CUevent event), query(event))

static CUresult synchronize(CUevent handle)
{
    struct event *event = event_of(handle);
    CU_REQUIRE(event, CUDA_ERROR_INVALID_HANDLE);
    CU_REQUIRE(!event->capture, CUDA_ERROR_CAPTURED_EVENT);
    CU_TRY(capture_allows_unsafe());
    struct context *context = event->context;
    engine_wait_event(event, event->recorded);
    CU_REQUIRE(handle_is(context, KIND_CONTEXT), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    pool_settle(context->device);
    return context->error;
}

CU_EXPORT_RESIDENT(cuEventSynchronize, (CUevent event), synchronize(event))

/* The difference is known in nanoseconds, but the interface has a float of milliseconds: coarse after an hour. */
static CUresult elapsed(float *out, CUevent from, CUevent to)
{
    const struct event *first = event_of(from), *second = event_of(to);
    CU_ARGUMENT(out);
    CU_REQUIRE(context_current(), CUDA_ERROR_INVALID_CONTEXT);
    CU_REQUIRE(first && second && first->context == second->context, CUDA_ERROR_INVALID_HANDLE);
    CU_REQUIRE(!((first->flags | second->flags) & CU_EVENT_DISABLE_TIMING), CUDA_ERROR_INVALID_HANDLE);
    CU_REQUIRE(first->recorded && second->recorded, CUDA_ERROR_INVALID_HANDLE);
    if (first->done != first->recorded || second->done != second->recorded)
        engine_catch_up(first->context->device);
    CU_REQUIRE(first->done == first->recorded && second->done == second->recorded, CUDA_ERROR_NOT_READY);
    *out = (float)((double)(int64_t)(second->time - first->time) / 1e6);
    return CUDA_SUCCESS;
}

CU_EXPORT_RESIDENT(cuEventElapsedTime, (float *out, CUevent from, CUevent to), elapsed(out, from, to))
CU_EXPORT_RESIDENT(cuEventElapsedTime_v2, (float *out, CUevent from, CUevent to), elapsed(out, from, to))
