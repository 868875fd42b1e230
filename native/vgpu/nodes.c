/* Kernel nodes of graphs, when they are made and when they get another function: it may need more local memory. */
#include "charge.h"
#include "local.h"

static const CUDA_KERNEL_NODE_PARAMS *kernel_in(const CUgraphNodeParams *parameters)
{
    return parameters && parameters->type == CU_NODE_KERNEL ? &parameters->kernel : NULL;
}

#define SET(name, parameters, with_context, arguments)                                                      \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        return local_allows_node(values, with_context) ? REAL(name) arguments : CUDA_ERROR_OUT_OF_MEMORY;   \
    }

SET(cuGraphKernelNodeSetParams, (CUgraphNode node, const void *values), false, (node, values))
SET(cuGraphKernelNodeSetParams_v2, (CUgraphNode node, const void *values), true, (node, values))
SET(cuGraphExecKernelNodeSetParams, (CUgraphExec exec, CUgraphNode node, const void *values), false,
    (exec, node, values))
SET(cuGraphExecKernelNodeSetParams_v2, (CUgraphExec exec, CUgraphNode node, const void *values), true,
    (exec, node, values))

#define ADD (CUgraphNode * out, CUgraph graph, const CUgraphNode *needs, size_t count, const void *values)

SET(cuGraphAddKernelNode, ADD, false, (out, graph, needs, count, values))
SET(cuGraphAddKernelNode_v2, ADD, true, (out, graph, needs, count, values))

#define SET_ANY(name, parameters, arguments)                                                                \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        return local_allows_node(kernel_in(values), true) ? REAL(name) arguments                            \
                                                          : CUDA_ERROR_OUT_OF_MEMORY;                       \
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
