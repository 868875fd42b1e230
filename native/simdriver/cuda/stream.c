/* Streams: making, asking, waiting. */
#include "stream.h"

#include "engine.h"
#include "memory.h"

CUresult stream_create(struct context *context, unsigned int flags, int priority, struct stream **out)
{
    struct stream *stream = handle_new(KIND_STREAM, sizeof(*stream));
    CU_REQUIRE(stream, CUDA_ERROR_OUT_OF_MEMORY);
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    stream->id = ++driver()->next_id;
    stream->next = context->device->streams;
    context->device->streams = stream;
    *out = stream;
    return CUDA_SUCCESS;
}

void stream_remove(struct stream *stream)
{
    for (struct stream **at = &stream->context->device->streams; *at; at = &(*at)->next)
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    handle_free(stream);
}

void streams_destroy(struct context *context)
{
    for (struct stream *stream = context->device->streams, *next; stream; stream = next) {
        next = stream->next;
        if (stream->context == context) {
            capture_end_stream(stream);
            stream_remove(stream);
        }
    }
}

static struct stream *per_thread(struct context *context)
{
    struct stream *stream = context->device->streams;
    while (stream && !(stream->context == context && stream->thread == thread_number()))
        stream = stream->next;
    if (!stream && stream_create(context, 0, 0, &stream) == CUDA_SUCCESS)
        stream->thread = thread_number();
    return stream;
}

struct stream *stream_of(CUstream handle, struct context *context)
{
    if (handle == CU_STREAM_PER_THREAD)
        return context ? per_thread(context) : NULL;
    if (!handle || handle == CU_STREAM_LEGACY)
        return context ? context->legacy : NULL;
    return handle_is(handle, KIND_STREAM) ? handle : NULL;
}

CUresult stream_error(CUstream handle)
{
    return (uintptr_t)handle <= 2 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult create(CUstream *out, unsigned int flags, int priority)
{
    CU_CONTEXT(context);
    CU_ARGUMENT(out && !(flags & ~(unsigned int)CU_STREAM_NON_BLOCKING));
    return stream_create(context, flags, priority, out);
}

CU_EXPORT(cuStreamCreate, (CUstream * out, unsigned int flags), create(out, flags, 0))
CU_EXPORT(cuStreamCreateWithPriority, (CUstream * out, unsigned int flags, int priority),
          create(out, flags, priority))

/* Returns at once; what is queued is done all the same. */
static CUresult destroy(CUstream handle)
{
    CU_REQUIRE((uintptr_t)handle > 2, CUDA_ERROR_INVALID_HANDLE);
    CU_STREAM(stream, handle);
    CU_REQUIRE(stream != stream->context->legacy, CUDA_ERROR_INVALID_HANDLE);
    capture_end_stream(stream);
    if (!stream->head) {
        stream_remove(stream);
    } else {
        handle_forget(stream);
        stream->dead = true;
    }
    return CUDA_SUCCESS;
}

CU_EXPORT(cuStreamDestroy_v2, (CUstream stream), destroy(stream))
CU_EXPORT(cuStreamDestroy, (CUstream stream), destroy(stream))

static CUresult query(CUstream handle)
{
    CU_STREAM(stream, handle);
    CU_REQUIRE(!stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CU_TRY(capture_allows_unsafe());
    engine_catch_up(stream->context->device);
    return stream->head ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CU_TWINS_RESIDENT(_ptsz, cuStreamQuery, (CUstream stream), query(OWN(stream)))

/* Work in the legacy default stream waits for the blocking streams, so waiting for it waits for them. */
static CUresult synchronize(CUstream handle)
{
    CU_STREAM(stream, handle);
    CU_REQUIRE(!stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CU_TRY(capture_allows_unsafe());
    struct context *context = stream->context;
    if (stream == context->legacy)
        CU_TRY(engine_submit(stream, op_new(OP_NOTHING, 0)));
    engine_wait_stream(stream);
    CU_REQUIRE(handle_is(context, KIND_CONTEXT), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    pool_settle(context->device);
    return context->error;
}

CU_TWINS_RESIDENT(_ptsz, cuStreamSynchronize, (CUstream stream), synchronize(OWN(stream)))

/* A property of a stream: the function, and the one for per-thread default streams. */
#define GETTER(name, type, expression)                                                                      \
    static CUresult get_##name(CUstream handle, type *out)                                                  \
    {                                                                                                       \
        CU_STREAM(stream, handle);                                                                          \
        CU_ARGUMENT(out);                                                                                   \
        *out = (type)(expression);                                                                          \
        return CUDA_SUCCESS;                                                                                \
    }                                                                                                       \
    CU_TWINS(_ptsz, name, (CUstream stream, type * out), get_##name(OWN(stream), out))

GETTER(cuStreamGetFlags, unsigned int, stream->flags)
GETTER(cuStreamGetPriority, int, stream->priority)
GETTER(cuStreamGetId, unsigned long long, stream->id)
GETTER(cuStreamGetCtx, CUcontext, stream->context)
GETTER(cuStreamGetDevice, CUdevice, stream->context->device->ordinal)

/* Version 2 tells of green contexts, of which there are none. */
static CUresult get_contexts(CUstream handle, CUcontext *context, void **green)
{
    CU_STREAM(stream, handle);
    CU_ARGUMENT(context && green);
    *context = stream->context;
    *green = NULL;
    return CUDA_SUCCESS;
}

CU_TWINS(_ptsz, cuStreamGetCtx_v2, (CUstream stream, CUcontext *context, void **green),
         get_contexts(OWN(stream), context, green))
