/* Captures: what is launched in a stream that captures does not run. Most programs have none, so launches need not ask.
 *
 * Another thread may begin or end a capture between two calls of ours. What has to know whether something was captured asks
 * before and after it whether any began, ended, or spread to another stream meanwhile. */
#include "capture.h"

static void count(int by)
{
    struct process *in = process();
    if (in && (by > 0 || atomic_load(&in->captures)))
        atomic_fetch_add(&in->captures, (uint32_t)by);
}

void capture_change(bool begins)
{
    struct process *in = process();
    if (in && begins)
        atomic_fetch_add(&in->capture_changing, 1);
    if (in && !begins) {
        atomic_fetch_add(&in->capture_changes, 1);
        atomic_fetch_sub(&in->capture_changing, 1);
    }
}

uint64_t capture_begins(void)
{
    struct process *in = process();
    uint64_t changes = in ? atomic_load(&in->capture_changes) : UINT64_MAX;
    return !in || atomic_load(&in->capture_changing) ? UINT64_MAX : changes;
}

bool capture_is_same(uint64_t begins)
{
    struct process *in = process();
    return begins != UINT64_MAX && in && !atomic_load(&in->capture_changing) &&
           atomic_load(&in->capture_changes) == begins;
}

bool capture_is_any(void)
{
    struct process *in = process();
    return !in || atomic_load_explicit(&in->captures, memory_order_relaxed);
}

bool capture_has(CUstream stream)
{
    int capturing = 0;
    return capture_is_any() && (REAL(cuStreamIsCapturing)(stream, &capturing) != CUDA_SUCCESS || capturing);
}

/* Before the call: a launch that comes right after it captures. */
#define BEGIN(name, parameters, arguments)                                                                  \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        capture_change(true);                                                                               \
        count(1);                                                                                           \
        CUresult result = REAL(name) arguments;                                                             \
        if (result != CUDA_SUCCESS)                                                                         \
            count(-1);                                                                                      \
        capture_change(false);                                                                              \
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
#define END(name)                                                                                           \
    CU_API CUresult name(CUstream stream, CUgraph *graph)                                                   \
    {                                                                                                       \
        capture_change(true);                                                                               \
        CUresult result = REAL(name)(stream, graph);                                                        \
        if (result == CUDA_SUCCESS)                                                                         \
            count(-1);                                                                                      \
        capture_change(false);                                                                              \
        return result;                                                                                      \
    }

END(cuStreamEndCapture)
END(cuStreamEndCapture_ptsz)

int capture_leave(void)
{
    int mode = CU_CAPTURE_RELAXED;
    return REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS ? mode : -1;
}

void capture_return(int mode)
{
    if (mode >= 0)
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}
