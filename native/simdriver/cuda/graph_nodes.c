/* Nodes by type: making, reading and changing them. */
#include "graph.h"

#include "copy.h"
#include "engine.h"
#include "module.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>

CUresult kernel_pattern(const CUDA_KERNEL_NODE_PARAMS *params, bool with_kernel, struct op **out)
{
    CU_CONTEXT(current);
    CU_ARGUMENT(params);
    struct function *function = function_of(params->func);
    struct context *context = with_kernel && handle_is(params->ctx, KIND_CONTEXT) ? params->ctx : current;
    if (!function && with_kernel)
        function = function_of(params->kern);
    CU_REQUIRE(function, CUDA_ERROR_INVALID_HANDLE);
    if (function->module->context)
        context = function->module->context; /* of a library's kernel, the node says which */
    struct launch launch = {
        .grid = {params->gridDimX, params->gridDimY, params->gridDimZ},
        .block = {params->blockDimX, params->blockDimY, params->blockDimZ},
        .shared = params->sharedMemBytes,
        .parameters = params->kernelParams,
        .extra = params->extra,
    };
    return launch_make(function, &launch, context, out);
}

static CUresult copy_pattern(const CUDA_MEMCPY3D *params, struct op **out)
{
    bool host_from, host_to;
    CU_ARGUMENT(params);
    CUDA_MEMCPY3D copy = *params;
    copy.srcPitch = copy.srcPitch ? copy.srcPitch : copy.WidthInBytes;
    copy.dstPitch = copy.dstPitch ? copy.dstPitch : copy.WidthInBytes;
    CU_TRY(copy_make(&copy, out, &host_from, &host_to));
    CU_ARGUMENT(*out); /* a node that copies nothing is refused */
    return CUDA_SUCCESS;
}

static CUresult fill_pattern(const CUDA_MEMSET_NODE_PARAMS *params, struct op **out)
{
    CU_ARGUMENT(params && params->width && params->height);
    return fill_make(params->dst, params->pitch, params->value, params->elementSize, params->width,
                     params->height, out);
}

static CUresult host_pattern(const CUDA_HOST_NODE_PARAMS *params, struct op **out)
{
    CU_ARGUMENT(params && params->fn);
    CU_TRY(host_functions_ready());
    *out = op_host(params->fn, params->userData);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult event_pattern(CUevent event, enum op_kind kind, struct op **out)
{
    CU_REQUIRE(event_of(event), CUDA_ERROR_INVALID_HANDLE);
    *out = op_event(kind, event);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult node_pattern(const CUgraphNodeParams *params, struct op **out)
{
    *out = NULL;
    CU_ARGUMENT(params);
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return kernel_pattern(&params->kernel, true, out);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return copy_pattern(&params->memcpy.copyParams, out);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return fill_pattern(&params->memset, out);
    case CU_GRAPH_NODE_TYPE_HOST:
        return host_pattern(&params->host, out);
    case CU_GRAPH_NODE_TYPE_EMPTY:
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return event_pattern(params->event.event, OP_WAIT, out);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return event_pattern(params->event.event, OP_RECORD, out);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

/* Adds a node whose pattern could be made. */
static CUresult add(CUgraphNode *out, CUgraph graph, const CUgraphNode *needs, size_t count, int type,
                    CUresult made, struct op *pattern)
{
    CU_TRY(made);
    if (!out || !graph_of(graph)) {
        op_free(pattern);
        return CUDA_ERROR_INVALID_VALUE;
    }
    return graph_add(graph, type, pattern, needs, count, out);
}

#define NEEDS CUgraphNode *out, CUgraph graph, const CUgraphNode *needs, size_t count

/* cuGraphAdd*Node for one type of node. */
#define ADD(name, type, parameter, make)                                                                    \
    static CUresult add_##name(NEEDS, parameter)                                                            \
    {                                                                                                       \
        struct op *pattern = NULL;                                                                          \
        CUresult made = make;                                                                               \
        return add(out, graph, needs, count, type, made, pattern);                                          \
    }                                                                                                       \
    CU_API CUresult name(NEEDS, parameter)                                                                  \
    {                                                                                                       \
        CU_CALL(add_##name(out, graph, needs, count, params));                                              \
    }

ADD(cuGraphAddKernelNode, CU_GRAPH_NODE_TYPE_KERNEL, const CUDA_KERNEL_NODE_PARAMS *params,
    kernel_pattern(params, false, &pattern))
ADD(cuGraphAddKernelNode_v2, CU_GRAPH_NODE_TYPE_KERNEL, const CUDA_KERNEL_NODE_PARAMS *params,
    kernel_pattern(params, true, &pattern))
ADD(cuGraphAddHostNode, CU_GRAPH_NODE_TYPE_HOST, const CUDA_HOST_NODE_PARAMS *params,
    host_pattern(params, &pattern))
ADD(cuGraphAddEventRecordNode, CU_GRAPH_NODE_TYPE_EVENT_RECORD, CUevent params,
    event_pattern(params, OP_RECORD, &pattern))
ADD(cuGraphAddEventWaitNode, CU_GRAPH_NODE_TYPE_WAIT_EVENT, CUevent params,
    event_pattern(params, OP_WAIT, &pattern))

/* Copies and settings name a context too; all contexts share one address space here. */
#define ADD_IN_CONTEXT(name, type, parameter, make)                                                         \
    static CUresult add_##name(NEEDS, parameter)                                                            \
    {                                                                                                       \
        struct op *pattern = NULL;                                                                          \
        CUresult made = make;                                                                               \
        return add(out, graph, needs, count, type, made, pattern);                                          \
    }                                                                                                       \
    CU_API CUresult name(NEEDS, parameter, CUcontext context)                                               \
    {                                                                                                       \
        (void)context;                                                                                      \
        CU_CALL(add_##name(out, graph, needs, count, params));                                              \
    }

ADD_IN_CONTEXT(cuGraphAddMemcpyNode, CU_GRAPH_NODE_TYPE_MEMCPY, const CUDA_MEMCPY3D *params,
               copy_pattern(params, &pattern))
ADD_IN_CONTEXT(cuGraphAddMemsetNode, CU_GRAPH_NODE_TYPE_MEMSET, const CUDA_MEMSET_NODE_PARAMS *params,
               fill_pattern(params, &pattern))

CU_EXPORT(cuGraphAddEmptyNode, (NEEDS),
          add(out, graph, needs, count, CU_GRAPH_NODE_TYPE_EMPTY, CUDA_SUCCESS, NULL))

static bool has_memory(const struct graph *graph)
{
    for (const struct node *node = graph->first; node; node = node->next)
        if (node->memory || (node->child && has_memory(node->child)))
            return true;
    return false;
}

static CUresult enter_child(NEEDS, struct graph *child)
{
    CU_TRY(add(out, graph, needs, count, CU_GRAPH_NODE_TYPE_GRAPH, CUDA_SUCCESS, NULL));
    child->is_child = true;
    (*out)->child = child;
    return CUDA_SUCCESS;
}

static CUresult add_child(NEEDS, CUgraph child)
{
    struct graph *clone;
    CU_ARGUMENT(graph_of(child) && child != graph);
    CU_REQUIRE(!has_memory(child), CUDA_ERROR_NOT_SUPPORTED); /* it has one owner */
    CU_TRY(graph_clone(child, &clone));
    CUresult result = enter_child(out, graph, needs, count, clone);
    if (result != CUDA_SUCCESS)
        graph_release(clone);
    return result;
}

/* The graph itself becomes the child, with the memory that it has. */
static CUresult move_child(NEEDS, CUgraph child)
{
    CU_ARGUMENT(graph_of(child) && child != graph && !child->is_child);
    return enter_child(out, graph, needs, count, child);
}

CU_EXPORT(cuGraphAddChildGraphNode, (NEEDS, CUgraph child), add_child(out, graph, needs, count, child))

static CUresult get_child(CUgraphNode node, CUgraph *out)
{
    CU_ARGUMENT(node_of(node) && node->child && out);
    *out = node->child;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuGraphChildGraphNodeGetGraph, (CUgraphNode node, CUgraph *out), get_child(node, out))

/* The newest form: the type is in the parameters. */
static CUresult add_any(NEEDS, CUgraphNodeParams *params)
{
    struct op *pattern = NULL;
    CU_ARGUMENT(params);
    if (params->type == CU_GRAPH_NODE_TYPE_GRAPH &&
        params->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE)
        return move_child(out, graph, needs, count, params->graph.graph);
    if (params->type == CU_GRAPH_NODE_TYPE_GRAPH)
        return add_child(out, graph, needs, count, params->graph.graph);
    if (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        return graph_add_allocation(out, graph, needs, count, &params->alloc);
    if (params->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        return graph_add_free(out, graph, needs, count, params->free.dptr);
    if (params->type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
        return graph_add_condition(out, graph, needs, count, &params->conditional);
    CUresult made = node_pattern(params, &pattern);
    return add(out, graph, needs, count, params->type, made, pattern);
}

CU_EXPORT(cuGraphAddNode, (NEEDS, CUgraphNodeParams *params), add_any(out, graph, needs, count, params))
CU_EXPORT(cuGraphAddNode_v2,
          (CUgraphNode * out, CUgraph graph, const CUgraphNode *needs, const CUgraphEdgeData *edges,
           size_t count, CUgraphNodeParams *params),
          ((void)edges, add_any(out, graph, needs, count, params)))
CU_EXPORT(cuGraphAddMemAllocNode, (NEEDS, CUDA_MEM_ALLOC_NODE_PARAMS *params),
          graph_add_allocation(out, graph, needs, count, params))
CU_EXPORT(cuGraphAddMemFreeNode, (NEEDS, CUdeviceptr address),
          graph_add_free(out, graph, needs, count, address))
