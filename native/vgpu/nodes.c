/* Kernel nodes of graphs that get another function, which may need more local memory. */
#include "charge.h"
#include "local.h"

static CUfunction function_of(const void *parameters)
{
    return parameters ? *(const CUfunction *)parameters : NULL; /* the first member, in both versions */
}

static CUfunction function_in(const CUgraphNodeParams *parameters)
{
    return parameters && parameters->type == CU_NODE_KERNEL ? parameters->kernel.func : NULL;
}

#define SET(name, parameters, function, arguments)                                                          \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        return local_allows(function) ? REAL(name) arguments : CUDA_ERROR_OUT_OF_MEMORY;                    \
    }

SET(cuGraphKernelNodeSetParams, (CUgraphNode node, const void *values), function_of(values), (node, values))
SET(cuGraphKernelNodeSetParams_v2, (CUgraphNode node, const void *values), function_of(values),
    (node, values))
SET(cuGraphExecKernelNodeSetParams, (CUgraphExec exec, CUgraphNode node, const void *values),
    function_of(values), (exec, node, values))
SET(cuGraphExecKernelNodeSetParams_v2, (CUgraphExec exec, CUgraphNode node, const void *values),
    function_of(values), (exec, node, values))
SET(cuGraphNodeSetParams, (CUgraphNode node, CUgraphNodeParams *values), function_in(values), (node, values))
SET(cuGraphExecNodeSetParams, (CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *values),
    function_in(values), (exec, node, values))
