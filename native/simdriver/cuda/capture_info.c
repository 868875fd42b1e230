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

CU_API CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
    CU_CALL(is_capturing(stream, status));
}

CU_API CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status)
{
    CU_CALL(is_capturing(PER_THREAD(stream), status));
}

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

CU_API CUresult cuStreamGetCaptureInfo(CUstream stream, int *status, uint64_t *id)
{
    CU_CALL(get_info(stream, (struct info){.status = status, .id = id}));
}

CU_API CUresult cuStreamGetCaptureInfo_ptsz(CUstream stream, int *status, uint64_t *id)
{
    CU_CALL(get_info(PER_THREAD(stream), (struct info){.status = status, .id = id}));
}

CU_API CUresult cuStreamGetCaptureInfo_v2(INFO_V2)
{
    CU_CALL(get_info(stream, (struct info){status, id, graph, nodes, NULL, count}));
}

CU_API CUresult cuStreamGetCaptureInfo_v2_ptsz(INFO_V2)
{
    CU_CALL(get_info(PER_THREAD(stream), (struct info){status, id, graph, nodes, NULL, count}));
}

CU_API CUresult cuStreamGetCaptureInfo_v3(INFO_V3)
{
    CU_CALL(get_info(stream, (struct info){status, id, graph, nodes, edges, count}));
}

CU_API CUresult cuStreamGetCaptureInfo_v3_ptsz(INFO_V3)
{
    CU_CALL(get_info(PER_THREAD(stream), (struct info){status, id, graph, nodes, edges, count}));
}

static CUresult update(CUstream handle, CUgraphNode *nodes, size_t count, unsigned int flags)
{
    CU_STREAM(stream, handle);
    CU_REQUIRE(stream->capture, CUDA_ERROR_ILLEGAL_STATE);
    CU_ARGUMENT(flags <= 1 && (nodes || !count));
    for (size_t i = 0; i < count; i++)
        CU_ARGUMENT(node_of(nodes[i]) && nodes[i]->graph == stream->capture->graph);
    return flags ? frontier_set(stream, nodes, count) : frontier_extend(stream, nodes, count);
}

CU_API CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *nodes, size_t count,
                                                  unsigned int flags)
{
    CU_CALL(update(stream, nodes, count, flags));
}

CU_API CUresult cuStreamUpdateCaptureDependencies_ptsz(CUstream stream, CUgraphNode *nodes, size_t count,
                                                       unsigned int flags)
{
    CU_CALL(update(PER_THREAD(stream), nodes, count, flags));
}

CU_API CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *nodes,
                                                     const CUgraphEdgeData *edges, size_t count,
                                                     unsigned int flags)
{
    (void)edges;
    CU_CALL(update(stream, nodes, count, flags));
}

CU_API CUresult cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream stream, CUgraphNode *nodes,
                                                          const CUgraphEdgeData *edges, size_t count,
                                                          unsigned int flags)
{
    (void)edges;
    CU_CALL(update(PER_THREAD(stream), nodes, count, flags));
}
