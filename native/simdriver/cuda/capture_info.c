/* What a program can ask about a capture, and how it changes what comes next in one. */
#include "capture.h"

static int status_of(const struct stream *stream)
{
    return !stream->capture ? STATUS_NONE : stream->capture->invalid ? STATUS_INVALIDATED : STATUS_ACTIVE;
}

static CUresult is_capturing(CUstream handle, int *status)
{
    CU_STREAM(stream, handle);
    CU_ARGUMENT(status);
    CU_TRY(capture_allows_work(stream));
    *status = status_of(stream);
    return CUDA_SUCCESS;
}

CU_TWINS(_ptsz, cuStreamIsCapturing, (CUstream stream, int *status), is_capturing(OWN(stream), status))

struct info {
    int *status;
    uint64_t *id;
    CUgraph *graph;
    const CUgraphNode **nodes;
    const CUgraphEdgeData **edges;
    size_t *count;
};

static CUresult get_info(CUstream handle, struct info out)
{
    CU_STREAM(stream, handle);
    CU_ARGUMENT(out.status);
    *out.status = status_of(stream);
    if (*out.status != STATUS_ACTIVE)
        return CUDA_SUCCESS;
    if (out.id)
        *out.id = stream->capture->id;
    if (out.graph)
        *out.graph = stream->capture->graph;
    if (out.nodes)
        *out.nodes = stream->frontier;
    if (out.edges)
        *out.edges = NULL;
    if (out.count)
        *out.count = stream->frontier_count;
    return CUDA_SUCCESS;
}

#define INFO_V2                                                                                             \
    CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes, size_t *count
#define INFO_V3                                                                                             \
    CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes,                  \
        const CUgraphEdgeData **edges, size_t *count

CU_TWINS(_ptsz, cuStreamGetCaptureInfo, (CUstream stream, int *status, uint64_t *id),
         get_info(OWN(stream), (struct info){.status = status, .id = id}))
CU_TWINS(_ptsz, cuStreamGetCaptureInfo_v2, (INFO_V2),
         get_info(OWN(stream), (struct info){status, id, graph, nodes, NULL, count}))
CU_TWINS(_ptsz, cuStreamGetCaptureInfo_v3, (INFO_V3),
         get_info(OWN(stream), (struct info){status, id, graph, nodes, edges, count}))

static CUresult update(CUstream handle, CUgraphNode *nodes, size_t count, unsigned int flags)
{
    CU_STREAM(stream, handle);
    CU_REQUIRE(stream->capture, CUDA_ERROR_ILLEGAL_STATE);
    CU_ARGUMENT(flags <= 1 && (nodes || !count));
    for (size_t i = 0; i < count; i++)
        CU_ARGUMENT(node_of(nodes[i]) && nodes[i]->graph == stream->capture->graph);
    return flags ? frontier_set(stream, nodes, count) : frontier_extend(stream, nodes, count);
}

CU_TWINS(_ptsz, cuStreamUpdateCaptureDependencies,
         (CUstream stream, CUgraphNode *nodes, size_t count, unsigned int flags),
         update(OWN(stream), nodes, count, flags))
CU_TWINS(_ptsz, cuStreamUpdateCaptureDependencies_v2,
         (CUstream stream, CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t count,
          unsigned int flags),
         ((void)edges, update(OWN(stream), nodes, count, flags)))
