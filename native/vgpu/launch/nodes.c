/* Kernel nodes of graphs, when they are made and when they get another function: it may need more local memory. */
#include "code/local.h"
#include "swap/hold.h"

#include <string.h>

/* Once for all: inline, a structure is many instructions. */
static __attribute__((noinline)) void copy(void *to, const void *from, size_t size)
{
    memcpy(to, from, size);
}

/* With copies, since another thread may change what the program has. The first version of the structure ends before the
 * kernel. */
static __attribute__((noinline)) bool allows_kernel(const void *values, bool with_context,
                                                    CUDA_KERNEL_NODE_PARAMS *own)
{
    *own = (CUDA_KERNEL_NODE_PARAMS){0};
    if (values)
        copy(own, values, with_context ? sizeof(*own) : offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
    return local_allows_node(values ? own : NULL, with_context);
}

#define SET(name, parameters, with_context, arguments)                                                      \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        CUDA_KERNEL_NODE_PARAMS own;                                                                        \
        const void *place = values ? &own : NULL;                                                           \
        return allows_kernel(values, with_context, &own) ? REAL(name) arguments : CUDA_ERROR_OUT_OF_MEMORY; \
    }

SET(cuGraphKernelNodeSetParams, (CUgraphNode node, const void *values), false, (node, place))
SET(cuGraphKernelNodeSetParams_v2, (CUgraphNode node, const void *values), true, (node, place))
SET(cuGraphExecKernelNodeSetParams, (CUgraphExec exec, CUgraphNode node, const void *values), false,
    (exec, node, place))
SET(cuGraphExecKernelNodeSetParams_v2, (CUgraphExec exec, CUgraphNode node, const void *values), true,
    (exec, node, place))

#define ADD (CUgraphNode * out, CUgraph graph, const CUgraphNode *needs, size_t count, const void *values)

SET(cuGraphAddKernelNode, ADD, false, (out, graph, needs, count, place))
SET(cuGraphAddKernelNode_v2, ADD, true, (out, graph, needs, count, place))

static CUresult allows_any(const CUgraphNodeParams *values, CUgraphNodeParams *own)
{
    if (!values)
        return CUDA_SUCCESS;
    copy(own, values, sizeof(*own));
    return own->type != CU_GRAPH_NODE_TYPE_KERNEL || local_allows_node(&own->kernel, true)
               ? CUDA_SUCCESS
               : CUDA_ERROR_OUT_OF_MEMORY;
}

/* What the driver has written, such as an address. */
static __attribute__((noinline)) CUresult answer(CUgraphNodeParams *values, const CUgraphNodeParams *own,
                                                 CUresult result)
{
    if (values && memcmp(values, own, sizeof(*own)) != 0)
        copy(values, own, sizeof(*own));
    return result;
}

#define SET_ANY(name, parameters, arguments)                                                                \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        CUgraphNodeParams own, *place = values ? &own : NULL;                                               \
        CUresult result = allows_any(values, &own);                                                         \
        return result == CUDA_SUCCESS ? answer(values, place, HELD(REAL(name) arguments)) : result;         \
    }

SET_ANY(cuGraphNodeSetParams, (CUgraphNode node, CUgraphNodeParams *values), (node, place))
SET_ANY(cuGraphExecNodeSetParams, (CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *values),
        (exec, node, place))
SET_ANY(cuGraphAddNode,
        (CUgraphNode * out, CUgraph graph, const CUgraphNode *needs, size_t count,
         CUgraphNodeParams *values),
        (out, graph, needs, count, place))
SET_ANY(cuGraphAddNode_v2,
        (CUgraphNode * out, CUgraph graph, const CUgraphNode *needs, const void *edges, size_t count,
         CUgraphNodeParams *values),
        (out, graph, needs, edges, count, place))
