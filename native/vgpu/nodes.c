/* Kernel nodes of graphs, when they are made and when they get another function: it may need more local memory. And nodes
 * of any kind, one of which records an event. */
#include "charge.h"
#include "local.h"
#include "own_events.h"

static const CUDA_KERNEL_NODE_PARAMS *kernel_in(const CUgraphNodeParams *parameters)
{
    return parameters && parameters->type == CU_NODE_KERNEL ? &parameters->kernel : NULL;
}

static bool records_own(const CUgraphNodeParams *parameters)
{
    return parameters && parameters->type == CU_NODE_EVENT_RECORD && own_event_is(parameters->event);
}

#define SET(name, parameters, kernel, with_context, arguments)                                              \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        return local_allows_node(kernel, with_context) ? REAL(name) arguments : CUDA_ERROR_OUT_OF_MEMORY;   \
    }

SET(cuGraphKernelNodeSetParams, (CUgraphNode node, const void *values), values, false, (node, values))
SET(cuGraphKernelNodeSetParams_v2, (CUgraphNode node, const void *values), values, true, (node, values))
SET(cuGraphExecKernelNodeSetParams, (CUgraphExec exec, CUgraphNode node, const void *values), values, false,
    (exec, node, values))
SET(cuGraphExecKernelNodeSetParams_v2, (CUgraphExec exec, CUgraphNode node, const void *values), values,
    true, (exec, node, values))

#define SET_ANY(name, parameters, arguments)                                                                \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        if (records_own(values))                                                                            \
            return CUDA_ERROR_INVALID_HANDLE;                                                               \
        if (!local_allows_node(kernel_in(values), true))                                                    \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                \
        return REAL(name) arguments;                                                                        \
    }

SET_ANY(cuGraphNodeSetParams, (CUgraphNode node, CUgraphNodeParams *values), (node, values))
SET_ANY(cuGraphExecNodeSetParams, (CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *values),
        (exec, node, values))
SET_ANY(cuGraphAddNode,
        (CUgraphNode * out, CUgraph graph, const CUgraphNode *needs, size_t count,
         CUgraphNodeParams *values),
        (out, graph, needs, count, values))
SET_ANY(cuGraphAddNode_v2,
        (CUgraphNode * out, CUgraph graph, const CUgraphNode *needs, const void *edges, size_t count,
         CUgraphNodeParams *values),
        (out, graph, needs, edges, count, values))

CU_API CUresult cuGraphAddKernelNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *needs, size_t count,
                                     const void *parameters)
{
    if (!local_allows_node(parameters, false))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return REAL(cuGraphAddKernelNode)(out, graph, needs, count, parameters);
}

CU_API CUresult cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *needs,
                                        size_t count, const void *parameters)
{
    if (!local_allows_node(parameters, true))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return REAL(cuGraphAddKernelNode_v2)(out, graph, needs, count, parameters);
}
