/* Streams and events. */
#pragma once

#include "driver.h"

/* In the functions for programs that are built with a default stream for each thread. */
#define PER_THREAD(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)

CUresult stream_create(struct context *context, unsigned int flags, int priority, struct stream **out);
void streams_destroy(struct context *context);
void stream_remove(struct stream *stream); /* its last operation is done */

/* The stream that a handle means for a thread with this current context; NULL: none. */
struct stream *stream_of(CUstream handle, struct context *context);

/* Declares `name`, the stream of a handle, in a function with the lock held. */
#define CU_STREAM(name, handle)                                                                             \
    struct stream *name = stream_of(handle, context_current());                                             \
    CU_REQUIRE(name, stream_error(handle));                                                                 \
    CU_REQUIRE(name->context->error == CUDA_SUCCESS, name->context->error)

/* Why `stream_of` found none. */
CUresult stream_error(CUstream handle);

struct event *event_of(CUevent handle);
void event_release(struct event *event);
CUresult event_create(struct context *context, unsigned int flags, struct event **out);
void events_destroy(struct context *context);

/* Operations about events (NULL: out of memory), and functions of the program. */
struct op *op_event(enum op_kind kind, struct event *event);
struct op *op_host(CUhostFn function, void *argument);
void op_host_params(const struct op *op, CUDA_HOST_NODE_PARAMS *out);

/* capture.c */
bool context_is_capturing(const struct context *context);
CUresult capture_add(struct stream *stream, struct op *op);
CUresult capture_record(struct stream *stream, struct event *event);
CUresult capture_wait(struct stream *stream, struct event *event);
void capture_end_stream(struct stream *stream); /* it is destroyed */
/* Whether a call that could synchronise may be made now, or work be put into the legacy stream: a capture that this
 * would break is invalidated, and the call refused. */
CUresult capture_allows_unsafe(void);
CUresult capture_allows_work(const struct stream *stream);
