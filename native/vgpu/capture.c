/* Captures: what is launched in a stream that captures does not run. Most programs have none, so launches need not ask. */
#include "process.h"
#include "real.h"

static void count(int by)
{
    struct process *in = process();
    if (in && (by > 0 || atomic_load(&in->captures)))
        atomic_fetch_add(&in->captures, (uint32_t)by);
}

/* Before the call: a launch that comes right after it captures. */
#define BEGIN(name, parameters, arguments)                                                                  \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        count(1);                                                                                           \
        CUresult result = REAL(name) arguments;                                                             \
        if (result != CUDA_SUCCESS)                                                                         \
            count(-1);                                                                                      \
        return result;                                                                                      \
    }

#define TO_GRAPH                                                                                            \
    (CUstream stream, CUgraph graph, const CUgraphNode *needs, const void *edges, size_t size, int mode)

BEGIN(cuStreamBeginCapture, (CUstream stream), (stream))
BEGIN(cuStreamBeginCapture_ptsz, (CUstream stream), (stream))
BEGIN(cuStreamBeginCapture_v2, (CUstream stream, int mode), (stream, mode))
BEGIN(cuStreamBeginCapture_v2_ptsz, (CUstream stream, int mode), (stream, mode))
BEGIN(cuStreamBeginCaptureToGraph, TO_GRAPH, (stream, graph, needs, edges, size, mode))
BEGIN(cuStreamBeginCaptureToGraph_ptsz, TO_GRAPH, (stream, graph, needs, edges, size, mode))

/* One that ends in another way, with its stream, leaves the count too high: then launches ask. */
CU_API CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    CUresult result = REAL(cuStreamEndCapture)(stream, graph);
    if (result == CUDA_SUCCESS)
        count(-1);
    return result;
}

CU_API CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    CUresult result = REAL(cuStreamEndCapture_ptsz)(stream, graph);
    if (result == CUDA_SUCCESS)
        count(-1);
    return result;
}
