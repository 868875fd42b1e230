/* Reading and changing the parameters of nodes, in graphs and in their instances. */
#include "graph.h"

#include "copy.h"
#include "engine.h"
#include "module.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>

static struct node *node_of_type(CUgraphNode handle, int type)
{
    struct node *node = node_of(handle);
    return node && node->type == type ? node : NULL;
}

/* Pointers into the copied arguments, made when a program first asks. */
static CUresult get_kernel(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS *out, bool with_kernel)
{
    struct node *node = node_of_type(handle, CU_GRAPH_NODE_TYPE_KERNEL);
    CU_ARGUMENT(node && out);
    struct kernel_call *call = op_data(node->pattern);
    const struct function *function = call->function;
    if (!node->pointers)
        node->pointers = calloc(function->parameter_count + 1, sizeof(void *));
    CU_REQUIRE(node->pointers, CUDA_ERROR_OUT_OF_MEMORY);
    for (uint32_t i = 0; i < function->parameter_count; i++)
        node->pointers[i] = call->arguments + function->parameters[i].offset;
    CUDA_KERNEL_NODE_PARAMS params = {
        call->function, call->grid[0], call->grid[1],  call->grid[2], call->block[0], call->block[1],
        call->block[2], call->shared,  node->pointers, NULL,          NULL,           call->context,
    };
    memcpy(out, &params, with_kernel ? sizeof(params) : offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
    return CUDA_SUCCESS;
}

CU_EXPORT(cuGraphKernelNodeGetParams, (CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *out),
          get_kernel(node, out, false))
CU_EXPORT(cuGraphKernelNodeGetParams_v2, (CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *out),
          get_kernel(node, out, true))

static CUresult get_copy(CUgraphNode handle, CUDA_MEMCPY3D *out)
{
    const struct node *node = node_of_type(handle, CU_GRAPH_NODE_TYPE_MEMCPY);
    CU_ARGUMENT(node && out);
    *out = ((const struct copy *)op_data(node->pattern))->asked;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuGraphMemcpyNodeGetParams, (CUgraphNode node, CUDA_MEMCPY3D *out), get_copy(node, out))

static CUresult get_fill(CUgraphNode handle, CUDA_MEMSET_NODE_PARAMS *out)
{
    const struct node *node = node_of_type(handle, CU_GRAPH_NODE_TYPE_MEMSET);
    CU_ARGUMENT(node && out);
    const struct fill *fill = op_data(node->pattern);
    *out = (CUDA_MEMSET_NODE_PARAMS){
        (uint64_t)(uintptr_t)fill->at, fill->pitch, fill->value, fill->size, fill->width, fill->height};
    return CUDA_SUCCESS;
}

CU_EXPORT(cuGraphMemsetNodeGetParams, (CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *out), get_fill(node, out))

static CUresult get_host(CUgraphNode handle, CUDA_HOST_NODE_PARAMS *out)
{
    const struct node *node = node_of_type(handle, CU_GRAPH_NODE_TYPE_HOST);
    CU_ARGUMENT(node && out);
    op_host_params(node->pattern, out);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuGraphHostNodeGetParams, (CUgraphNode node, CUDA_HOST_NODE_PARAMS *out), get_host(node, out))

static CUresult get_event(CUgraphNode node, CUevent *out)
{
    CU_ARGUMENT(node_of(node) && out && node->pattern && node->pattern->event);
    *out = node->pattern->event;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuGraphEventRecordNodeGetEvent, (CUgraphNode node, CUevent *out), get_event(node, out))
CU_EXPORT(cuGraphEventWaitNodeGetEvent, (CUgraphNode node, CUevent *out), get_event(node, out))

/* Puts a new pattern where an old one was. */
static void replace(struct op **at, struct op *pattern)
{
    op_free(*at);
    *at = pattern;
}

static CUresult set_in_graph(CUgraphNode handle, const CUgraphNodeParams *params)
{
    struct op *pattern;
    struct node *node = node_of_type(handle, params->type);
    CU_ARGUMENT(node);
    CU_TRY(node_pattern(params, &pattern));
    free(node->pointers);
    node->pointers = NULL;
    replace(&node->pattern, pattern);
    return CUDA_SUCCESS;
}

static CUresult set_in_exec(CUgraphExec exec, CUgraphNode handle, const CUgraphNodeParams *params)
{
    struct op *pattern;
    CU_REQUIRE(handle_is(exec, KIND_GRAPH_EXEC), CUDA_ERROR_INVALID_HANDLE);
    for (size_t i = 0; i < exec->count; i++)
        if (exec->nodes[i] == handle && exec->patterns[i]) {
            CU_ARGUMENT(exec->patterns[i]->node_type == params->type);
            CU_TRY(node_pattern(params, &pattern));
            replace(&exec->patterns[i], pattern);
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

/* The parameters of one type, as those of any. */
static CUgraphNodeParams of_kernel(const CUDA_KERNEL_NODE_PARAMS *from, bool with_kernel)
{
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
    memcpy(&params.kernel, from, with_kernel ? sizeof(*from) : offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
    return params;
}

static CUgraphNodeParams of_copy(const CUDA_MEMCPY3D *from)
{
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};
    params.memcpy.copyParams = *from;
    return params;
}

static CUgraphNodeParams of_fill(const CUDA_MEMSET_NODE_PARAMS *from)
{
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
    params.memset = *from;
    return params;
}

static CUgraphNodeParams of_host(const CUDA_HOST_NODE_PARAMS *from)
{
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_HOST};
    params.host = *from;
    return params;
}

static CUgraphNodeParams of_event(CUevent event, int type)
{
    CUgraphNodeParams params = {.type = type};
    params.event.event = event;
    return params;
}

#define SET(name, parameter, convert)                                                                       \
    CU_API CUresult name(CUgraphNode node, parameter)                                                       \
    {                                                                                                       \
        CU_ARGUMENT(params);                                                                                \
        CUgraphNodeParams any = convert;                                                                    \
        CU_CALL(set_in_graph(node, &any));                                                                  \
    }

#define SET_EXEC(name, parameter, convert)                                                                  \
    CU_API CUresult name(CUgraphExec exec, CUgraphNode node, parameter)                                     \
    {                                                                                                       \
        CU_ARGUMENT(params);                                                                                \
        CUgraphNodeParams any = convert;                                                                    \
        CU_CALL(set_in_exec(exec, node, &any));                                                             \
    }

#define SET_EXEC_IN_CONTEXT(name, parameter, convert)                                                       \
    CU_API CUresult name(CUgraphExec exec, CUgraphNode node, parameter, CUcontext context)                  \
    {                                                                                                       \
        (void)context;                                                                                      \
        CU_ARGUMENT(params);                                                                                \
        CUgraphNodeParams any = convert;                                                                    \
        CU_CALL(set_in_exec(exec, node, &any));                                                             \
    }

SET(cuGraphKernelNodeSetParams, const CUDA_KERNEL_NODE_PARAMS *params, of_kernel(params, false))
SET(cuGraphKernelNodeSetParams_v2, const CUDA_KERNEL_NODE_PARAMS *params, of_kernel(params, true))
SET(cuGraphMemcpyNodeSetParams, const CUDA_MEMCPY3D *params, of_copy(params))
SET(cuGraphMemsetNodeSetParams, const CUDA_MEMSET_NODE_PARAMS *params, of_fill(params))
SET(cuGraphHostNodeSetParams, const CUDA_HOST_NODE_PARAMS *params, of_host(params))
SET(cuGraphEventRecordNodeSetEvent, CUevent params, of_event(params, CU_GRAPH_NODE_TYPE_EVENT_RECORD))
SET(cuGraphEventWaitNodeSetEvent, CUevent params, of_event(params, CU_GRAPH_NODE_TYPE_WAIT_EVENT))
SET(cuGraphNodeSetParams, CUgraphNodeParams *params, *params)
SET_EXEC(cuGraphExecKernelNodeSetParams, const CUDA_KERNEL_NODE_PARAMS *params, of_kernel(params, false))
SET_EXEC(cuGraphExecKernelNodeSetParams_v2, const CUDA_KERNEL_NODE_PARAMS *params, of_kernel(params, true))
SET_EXEC_IN_CONTEXT(cuGraphExecMemcpyNodeSetParams, const CUDA_MEMCPY3D *params, of_copy(params))
SET_EXEC_IN_CONTEXT(cuGraphExecMemsetNodeSetParams, const CUDA_MEMSET_NODE_PARAMS *params, of_fill(params))
SET_EXEC(cuGraphExecHostNodeSetParams, const CUDA_HOST_NODE_PARAMS *params, of_host(params))
SET_EXEC(cuGraphExecEventRecordNodeSetEvent, CUevent params,
         of_event(params, CU_GRAPH_NODE_TYPE_EVENT_RECORD))
SET_EXEC(cuGraphExecEventWaitNodeSetEvent, CUevent params, of_event(params, CU_GRAPH_NODE_TYPE_WAIT_EVENT))
SET_EXEC(cuGraphExecNodeSetParams, CUgraphNodeParams *params, *params)

/* Attributes steer caches and clusters of hardware: accepted, and without effect. */
static CUresult kernel_attribute(CUgraphNode node, const void *value)
{
    CU_ARGUMENT(node_of_type(node, CU_GRAPH_NODE_TYPE_KERNEL) && value);
    return CUDA_SUCCESS;
}

CU_API CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, int attribute, const void *value)
{
    CU_ARGUMENT(attribute >= 0);
    CU_CALL(kernel_attribute(node, value));
}

CU_EXPORT(cuGraphKernelNodeCopyAttributes, (CUgraphNode to, CUgraphNode from),
          kernel_attribute(to, node_of_type(from, CU_GRAPH_NODE_TYPE_KERNEL)))
