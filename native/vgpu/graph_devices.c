#include "graph_devices.h"

#include "items.h"

#include <stdlib.h>

enum { DEPTH = 64, MOST = 16 };

/* Of the process: what a graph that cannot be looked into may work on. */
static uint64_t all_positions(void)
{
    struct process *in = process();
    uint64_t all = 0;
    for (int i = 0; in && i < ORDINALS; i++) {
        uint8_t known = atomic_load_explicit(&in->positions[i], memory_order_relaxed);
        if (known)
            all |= UINT64_C(1) << (known - 1);
    }
    return all;
}

static uint64_t position_of(CUcontext context)
{
    struct target to;
    CUcontext before;
    if (!context)
        return target_current(&to) && to.position != NO_POSITION ? UINT64_C(1) << to.position : 0;
    if (REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return all_positions();
    uint64_t found = target_current(&to) && to.position != NO_POSITION ? UINT64_C(1) << to.position : 0;
    REAL(cuCtxPopCurrent_v2)(&before);
    return found;
}

static uint64_t positions_of(CUgraph graph, int depth);

static uint64_t positions_of_node(CUgraphNode node, int depth)
{
    CUDA_KERNEL_NODE_PARAMS kernel = {0};
    CUgraph child;
    int type = -1;
    if (REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS)
        return all_positions();
    if (type == CU_NODE_KERNEL)
        return REAL(cuGraphKernelNodeGetParams_v2)(node, &kernel) == CUDA_SUCCESS ? position_of(kernel.ctx)
                                                                                  : all_positions();
    if (type == CU_NODE_COPY || type == CU_NODE_SETTING || type == CU_NODE_CONDITIONAL)
        return all_positions(); /* it does not tell which context it works in */
    if (type != CU_NODE_GRAPH)
        return 0;
    return REAL(cuGraphChildGraphNodeGetGraph)(node, &child) == CUDA_SUCCESS ? positions_of(child, depth + 1)
                                                                             : all_positions();
}

static uint64_t positions_of(CUgraph graph, int depth)
{
    size_t count = 0;
    uint64_t found = 0;
    if (depth > DEPTH || REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS)
        return all_positions();
    if (!count)
        return 0;
    CUgraphNode *nodes = calloc(count, sizeof(CUgraphNode));
    if (!nodes || REAL(cuGraphGetNodes)(graph, nodes, &count) != CUDA_SUCCESS)
        found = all_positions();
    else
        for (size_t i = 0; i < count; i++)
            found |= positions_of_node(nodes[i], depth);
    free(nodes);
    return found;
}

/* Most processes use one device, and their graphs no other. */
void graph_devices_enter(CUgraphExec exec, CUgraph graph)
{
    uint64_t all = all_positions();
    if (!(all & (all - 1)))
        return;
    item_put(&(struct item){
        .kind = ITEM_DEVICES, .key = (uint64_t)(uintptr_t)exec, .other = positions_of(graph, 0)});
}

void graph_devices_leave(CUgraphExec exec)
{
    struct item item;
    item_take(ITEM_DEVICES, (uint64_t)(uintptr_t)exec, &item);
}

CUresult graph_devices_launch(CUgraphExec exec, CUstream stream, bool per_thread,
                              CUresult (*launch)(CUgraphExec, CUstream, void *), void *argument)
{
    struct launch passed[MOST];
    struct item item = {0};
    unsigned int count = 0;
    CUresult result = gate_enter_work(&passed[count], stream, per_thread);
    if (result != CUDA_SUCCESS)
        return result;
    int own = passed[count++].to.position;
    uint64_t all = all_positions(), left = all;
    if (all & (all - 1))
        left = item_get(ITEM_DEVICES, (uint64_t)(uintptr_t)exec, &item) ? item.other : all;
    for (int i = 0; i < VGPU_DEVICES && result == CUDA_SUCCESS && count < MOST; i++) {
        if (i == own || !(left >> i & 1) || !(all & (all - 1)))
            continue;
        result = gate_enter_for(&passed[count], stream, per_thread, i);
        count += result == CUDA_SUCCESS;
    }
    if (result == CUDA_SUCCESS)
        result = launch(exec, stream, argument);
    while (count > 0)
        gate_leave(&passed[--count], result);
    return result;
}
