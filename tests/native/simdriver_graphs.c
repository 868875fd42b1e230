/* Graphs, built and captured. */
#include "simdriver_test.h"

static uint32_t read_word(CUdeviceptr address)
{
    uint32_t value;
    OK(cuMemcpyDtoH_v2(&value, address, sizeof(value)));
    return value;
}

static CUDA_MEMSET_NODE_PARAMS setting(CUdeviceptr address, unsigned int value)
{
    return (CUDA_MEMSET_NODE_PARAMS){address, 0, value, 4, 1, 1};
}

static void nodes_run_in_the_order_of_their_needs(void)
{
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode first, second, third, empty;
    CUdeviceptr word;
    size_t count;
    use_device();
    OK(cuMemAlloc_v2(&word, 4));
    CUDA_MEMSET_NODE_PARAMS one = setting(word, 1), two = setting(word, 2), three = setting(word, 3);
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemsetNode(&third, graph, NULL, 0, &three, NULL));
    OK(cuGraphAddMemsetNode(&first, graph, NULL, 0, &one, NULL));
    OK(cuGraphAddMemsetNode(&second, graph, &first, 1, &two, NULL));
    OK(cuGraphAddDependencies(graph, &second, &third, 1));
    OK(cuGraphAddEmptyNode(&empty, graph, (CUgraphNode[]){first, third}, 2));
    OK(cuGraphGetEdges(graph, NULL, NULL, &count));
    CHECK(count == 4);
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, NULL));
    CHECK(read_word(word) == 3);
    OK(cuGraphNodeSetEnabled(exec, third, 0));
    OK(cuGraphLaunch(exec, NULL));
    CHECK(read_word(word) == 2);
    OK(cuGraphAddDependencies(graph, &third, &first, 1)); /* a cycle */
    CUgraphExec bad;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&bad, graph, 0));
    OK(cuGraphDestroy(graph));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuGraphExecDestroy(exec)); /* while it runs */
    OK(cuCtxSynchronize());
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuGraphLaunch(exec, NULL));
}

/* A fork and a join by events end up in one graph. */
static void streams_are_captured(void)
{
    CUstream one, other;
    CUevent fork_event, join_event;
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr words;
    size_t count;
    int status;
    use_device();
    OK(cuMemAlloc_v2(&words, 8));
    OK(cuMemsetD32_v2(words, 0, 2));
    OK(cuCtxSynchronize());
    OK(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&fork_event, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&join_event, CU_EVENT_DISABLE_TIMING));
    OK(cuStreamBeginCapture_v2(one, 0));
    OK(cuMemsetD32Async(words, 1, 1, one));
    OK(cuEventRecord(fork_event, one));
    OK(cuStreamWaitEvent(other, fork_event, 0));
    OK(cuStreamIsCapturing(other, &status));
    CHECK(status == 1);
    OK(cuMemsetD32Async(words + 4, 2, 1, other));
    OK(cuEventRecord(join_event, other));
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(join_event));
    OK(cuStreamWaitEvent(one, join_event, 0));
    OK(cuMemsetD32Async(words, 3, 1, one));
    OK(cuStreamEndCapture(one, &graph));
    OK(cuStreamIsCapturing(other, &status));
    CHECK(status == 0 && read_word(words) == 0);
    OK(cuGraphGetNodes(graph, NULL, &count));
    CHECK(count == 3);
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, one));
    OK(cuStreamSynchronize(one));
    CHECK(read_word(words) == 3 && read_word(words + 4) == 2);
}

static void captures_are_protected(void)
{
    CUstream stream, other;
    CUevent event;
    CUgraph graph;
    CUdeviceptr address;
    int relaxed = 2;
    use_device();
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, 0));
    OK(cuStreamBeginCapture_v2(stream, 0));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc_v2(&address, 1));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
    OK(cuStreamBeginCapture_v2(stream, 0));
    OK(cuThreadExchangeStreamCaptureMode(&relaxed));
    OK(cuMemAlloc_v2(&address, 4));
    OK(cuThreadExchangeStreamCaptureMode(&relaxed));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuMemsetD32Async(address, 0, 1, NULL));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
    OK(cuStreamBeginCapture_v2(stream, 2));
    OK(cuEventRecord(event, stream));
    OK(cuStreamWaitEvent(other, event, 0));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(other, &graph));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
    OK(cuStreamBeginCapture_v2(stream, 2));
    OK(cuEventRecord(event, stream));
    OK(cuStreamWaitEvent(other, event, 0));
    launch_small(kernel("sim_spin_1us"), other, NULL);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(stream, &graph));
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(stream, &graph));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture_v2(NULL, 0));
}

const struct test graph_tests[] = {
    {"nodes_run_in_the_order_of_their_needs", nodes_run_in_the_order_of_their_needs},
    {"streams_are_captured", streams_are_captured},
    {"captures_are_protected", captures_are_protected},
    {NULL, NULL},
};
