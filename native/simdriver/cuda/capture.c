/* Stream capture: operations become nodes of a graph in place of being executed. */
#include "capture.h"

#include "memory.h"
#include "pool.h"

#include <stdlib.h>
#include <string.h>

static _Thread_local int thread_mode = MODE_GLOBAL;

static void visit_streams(void (*visit)(struct stream *stream, void *data), void *data)
{
    for (uint32_t i = 0; i < driver()->device_count; i++)
        for (struct stream *stream = driver()->devices[i].streams; stream; stream = stream->next)
            if (stream->capture)
                visit(stream, data);
}

CUresult frontier_set(struct stream *stream, struct node **nodes, size_t count)
{
    struct node **copy = count ? malloc(count * sizeof(struct node *)) : NULL;
    CU_REQUIRE(copy || !count, CUDA_ERROR_OUT_OF_MEMORY);
    if (count)
        memcpy(copy, nodes, count * sizeof(*copy));
    free(stream->frontier);
    stream->frontier = copy;
    stream->frontier_count = count;
    return CUDA_SUCCESS;
}

CUresult frontier_extend(struct stream *stream, struct node *const *nodes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t at = 0;
        while (at < stream->frontier_count && stream->frontier[at] != nodes[i])
            at++;
        if (at < stream->frontier_count)
            continue;
        struct node **longer = realloc(stream->frontier, (at + 1) * sizeof(struct node *));
        CU_REQUIRE(longer, CUDA_ERROR_OUT_OF_MEMORY);
        longer[at] = nodes[i];
        stream->frontier = longer;
        stream->frontier_count = at + 1;
    }
    return CUDA_SUCCESS;
}

static CUresult is_alive(const struct stream *stream)
{
    return stream->capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

CUresult capture_add(struct stream *stream, struct op *op)
{
    struct node *node;
    if (stream->capture->invalid) {
        op_free(op);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    CU_TRY(graph_add(stream->capture->graph, op->node_type, op, stream->frontier, stream->frontier_count,
                     &node));
    return frontier_set(stream, &node, 1);
}

CUresult capture_record(struct stream *stream, struct event *event)
{
    CU_TRY(is_alive(stream));
    struct node **copy = malloc((stream->frontier_count + 1) * sizeof(struct node *));
    CU_REQUIRE(copy, CUDA_ERROR_OUT_OF_MEMORY);
    if (stream->frontier_count)
        memcpy(copy, stream->frontier, stream->frontier_count * sizeof(*copy));
    free(event->captured);
    event->captured = copy;
    event->captured_count = stream->frontier_count;
    event->capture = stream->capture;
    return CUDA_SUCCESS;
}

/* A stream that waits for an event of a capture joins it. */
CUresult capture_wait(struct stream *stream, struct event *event)
{
    if (!stream->capture) {
        CU_REQUIRE(stream != stream->context->legacy, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        stream->capture = event->capture;
        stream->frontier_count = 0;
    }
    if (stream->capture != event->capture) {
        stream->capture->invalid = event->capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    CU_TRY(is_alive(stream));
    return frontier_extend(stream, event->captured, event->captured_count);
}

CUresult capture_allocate(struct stream *stream, struct pool *pool, size_t size, CUdeviceptr *out)
{
    struct node *node;
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytesize = size};
    CU_TRY(is_alive(stream));
    params.poolProps.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, pool->device->ordinal};
    CU_TRY(graph_add_allocation(&node, stream->capture->graph, stream->frontier, stream->frontier_count,
                                &params));
    *out = params.dptr;
    return frontier_set(stream, &node, 1);
}

CUresult capture_free(struct stream *stream, CUdeviceptr address)
{
    struct node *node;
    CU_TRY(is_alive(stream));
    CU_TRY(graph_add_free(&node, stream->capture->graph, stream->frontier, stream->frontier_count, address));
    return frontier_set(stream, &node, 1);
}

static void leave_capture(struct stream *stream, void *capture)
{
    if (stream->capture != capture)
        return;
    free(stream->frontier);
    stream->frontier = NULL;
    stream->frontier_count = 0;
    stream->capture = NULL;
}

static void forget_event(void *object, void *capture)
{
    struct event *event = object;
    if (event->capture == capture)
        event->capture = NULL;
}

static void free_capture(struct capture *capture, bool keep_graph)
{
    visit_streams(leave_capture, capture);
    handle_each(KIND_EVENT, forget_event, capture);
    if (!keep_graph && !capture->is_callers_graph)
        graph_release(capture->graph);
    free(capture);
}

void capture_end_stream(struct stream *stream)
{
    if (!stream->capture)
        return;
    if (stream->capture->origin == stream) {
        free_capture(stream->capture, false);
    } else {
        stream->capture->invalid = true;
        leave_capture(stream, stream->capture);
    }
}

bool context_is_capturing(const struct context *context)
{
    for (const struct stream *stream = context->device->streams; stream; stream = stream->next)
        if (stream->context == context && stream->capture)
            return true;
    return false;
}

struct check {
    const struct stream *work; /* NULL: a call that could synchronise */
    bool hit;
};

static void check_stream(struct stream *stream, void *data)
{
    struct check *check = data;
    struct capture *capture = stream->capture;
    bool own = capture->thread == thread_number();
    bool breaks = check->work
                      ? stream->context == check->work->context && !(stream->flags & CU_STREAM_NON_BLOCKING)
                      : capture->mode != MODE_RELAXED &&
                            (own || (capture->mode == MODE_GLOBAL && thread_mode == MODE_GLOBAL));
    if (breaks) {
        capture->invalid = true;
        check->hit = true;
    }
}

CUresult capture_allows_unsafe(void)
{
    struct check check = {NULL, false};
    if (thread_mode != MODE_RELAXED)
        visit_streams(check_stream, &check);
    return check.hit ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult capture_allows_work(const struct stream *stream)
{
    struct check check = {stream, false};
    if (stream == stream->context->legacy)
        visit_streams(check_stream, &check);
    return check.hit ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

static CUresult begin(CUstream handle, struct graph *graph, const CUgraphNode *needs, size_t count, int mode)
{
    CU_STREAM(stream, handle);
    CU_ARGUMENT(mode >= MODE_GLOBAL && mode <= MODE_RELAXED && (needs || !count));
    CU_REQUIRE(stream != stream->context->legacy, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CU_REQUIRE(!stream->capture, CUDA_ERROR_ILLEGAL_STATE);
    struct capture *capture = calloc(1, sizeof(*capture));
    CU_REQUIRE(capture, CUDA_ERROR_OUT_OF_MEMORY);
    capture->is_callers_graph = graph != NULL;
    capture->graph = graph;
    CUresult result = graph ? CUDA_SUCCESS : graph_create(&capture->graph);
    if (result == CUDA_SUCCESS)
        result = frontier_set(stream, (struct node **)needs, count);
    if (result != CUDA_SUCCESS) {
        free(capture);
        return result;
    }
    capture->origin = stream;
    capture->id = ++driver()->next_id;
    capture->thread = thread_number();
    capture->mode = mode;
    stream->capture = capture;
    return CUDA_SUCCESS;
}

CU_TWINS(_ptsz, cuStreamBeginCapture, (CUstream stream), begin(OWN(stream), NULL, NULL, 0, MODE_GLOBAL))
CU_TWINS(_ptsz, cuStreamBeginCapture_v2, (CUstream stream, int mode),
         begin(OWN(stream), NULL, NULL, 0, mode))

static CUresult begin_to(CUstream stream, CUgraph graph, const CUgraphNode *needs, size_t count, int mode)
{
    CU_ARGUMENT(graph_of(graph));
    return begin(stream, graph, needs, count, mode);
}

CU_TWINS(_ptsz, cuStreamBeginCaptureToGraph,
         (CUstream stream, CUgraph graph, const CUgraphNode *needs, const CUgraphEdgeData *edges,
          size_t count, int mode),
         ((void)edges, begin_to(OWN(stream), graph, needs, count, mode)))

/* Of a graph without nodes alone: none is compared. */
static CUresult begin_again(CUstream stream, int mode, CUgraph graph)
{
    CU_REQUIRE(!graph_of(graph) || !graph_of(graph)->first, CUDA_ERROR_NOT_SUPPORTED);
    return begin_to(stream, graph, NULL, 0, mode);
}

CU_TWINS(_ptsz, cuStreamBeginRecaptureToGraph,
         (CUstream stream, int mode, CUgraph graph, void *callback, void *data),
         ((void)callback, (void)data, begin_again(OWN(stream), mode, graph)))

/* Marks all nodes that lead to `node`. */
static void mark(struct node *node)
{
    if (node->mark)
        return;
    node->mark = 1;
    for (size_t i = 0; i < node->need_count; i++)
        mark(node->needs[i]);
}

struct join {
    const struct capture *capture;
    bool unjoined;
};

static void check_joined(struct stream *stream, void *data)
{
    struct join *join = data;
    for (size_t i = 0; stream->capture == join->capture && i < stream->frontier_count; i++)
        if (!stream->frontier[i]->mark)
            join->unjoined = true;
}

/* What other streams did must lead back to the stream that began. */
static bool is_joined(const struct capture *capture)
{
    struct join join = {capture, false};
    for (struct node *node = capture->graph->first; node; node = node->next)
        node->mark = 0;
    for (size_t i = 0; i < capture->origin->frontier_count; i++)
        mark(capture->origin->frontier[i]);
    visit_streams(check_joined, &join);
    return !join.unjoined;
}

static CUresult end(CUstream handle, CUgraph *out)
{
    CU_STREAM(stream, handle);
    struct capture *capture = stream->capture;
    CU_ARGUMENT(out);
    *out = NULL;
    CU_REQUIRE(capture, CUDA_ERROR_ILLEGAL_STATE);
    CU_REQUIRE(capture->mode == MODE_RELAXED || capture->thread == thread_number(),
               CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    if (capture->origin != stream) {
        capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    CUresult result = capture->invalid     ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                      : is_joined(capture) ? CUDA_SUCCESS
                                           : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    if (result == CUDA_SUCCESS)
        *out = capture->graph;
    free_capture(capture, result == CUDA_SUCCESS);
    return result;
}

CU_TWINS(_ptsz, cuStreamEndCapture, (CUstream stream, CUgraph *out), end(OWN(stream), out))

CU_API CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    CU_ARGUMENT(mode && *mode >= MODE_GLOBAL && *mode <= MODE_RELAXED);
    int before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
