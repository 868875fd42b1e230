/* Instances of graphs: their nodes' operations in an order that respects all dependencies, executed one after the
 * other. Branches of a graph do not overlap here, which on hardware they may. */
#include "graph.h"
#include "pool.h"

#include "engine.h"
#include "stream.h"

#include <stdlib.h>

static void free_exec(struct graph_exec *exec)
{
    for (size_t i = 0; i < exec->count; i++)
        op_free(exec->patterns[i]);
    free(exec->patterns);
    free(exec->nodes);
    free(exec->disabled);
    for (struct graph_exec *body = exec->inner, *next; body; body = next) {
        next = body->next;
        free_exec(body);
    }
    graph_release(exec->graph);
    handle_free(exec);
}

void graph_exec_done(struct graph_exec *exec)
{
    if (--exec->running == 0 && exec->dead)
        free_exec(exec);
}

static size_t count_all(const struct graph *graph)
{
    size_t count = 0;
    for (const struct node *node = graph->first; node; node = node->next)
        count += node->child ? count_all(node->child) : 1;
    return count;
}

/* Appends copies of a graph's patterns, children in their place. */
static CUresult append(struct graph_exec *exec, const struct graph *graph, bool disabled)
{
    struct node **order = graph_order(graph);
    CUresult result = order ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < graph->count && result == CUDA_SUCCESS; i++) {
        struct node *node = order[i];
        if (node->child) {
            result = append(exec, node->child, disabled || node->disabled);
            continue;
        }
        struct op *pattern = node->pattern ? op_copy(node->pattern) : NULL;
        if (node->pattern && !pattern)
            result = CUDA_ERROR_OUT_OF_MEMORY;
        if (node->bodies)
            result = graph_choice(exec, node, &pattern);
        exec->nodes[exec->count] = node;
        exec->disabled[exec->count] = disabled || node->disabled;
        exec->patterns[exec->count++] = pattern;
    }
    free(order);
    return result;
}

CUresult graph_instantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
    CU_ARGUMENT(out && graph_of(graph));
    struct graph_exec *exec = handle_new(KIND_GRAPH_EXEC, sizeof(*exec));
    CU_REQUIRE(exec, CUDA_ERROR_OUT_OF_MEMORY);
    size_t room = count_all(graph) + 1;
    exec->graph = graph;
    graph->references++;
    exec->flags = flags;
    exec->patterns = calloc(room, sizeof(*exec->patterns));
    exec->nodes = calloc(room, sizeof(*exec->nodes));
    exec->disabled = calloc(room, sizeof(*exec->disabled));
    CUresult result = exec->patterns && exec->nodes && exec->disabled ? append(exec, graph, false)
                                                                      : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS)
        free_exec(exec);
    else
        *out = exec;
    return result;
}

CU_EXPORT(cuGraphInstantiateWithFlags, (CUgraphExec * out, CUgraph graph, unsigned long long flags),
          graph_instantiate(out, graph, flags))

static CUresult instantiate_logged(CUgraphExec *out, CUgraph graph, CUgraphNode *bad, char *log, size_t size)
{
    if (bad)
        *bad = NULL;
    if (log && size)
        *log = '\0';
    return graph_instantiate(out, graph, 0);
}

CU_EXPORT(cuGraphInstantiate, (CUgraphExec * out, CUgraph graph, CUgraphNode *bad, char *log, size_t size),
          instantiate_logged(out, graph, bad, log, size))
CU_EXPORT(cuGraphInstantiate_v2,
          (CUgraphExec * out, CUgraph graph, CUgraphNode *bad, char *log, size_t size),
          instantiate_logged(out, graph, bad, log, size))

static struct graph_exec *exec_of(CUgraphExec handle)
{
    return handle_is(handle, KIND_GRAPH_EXEC) ? handle : NULL;
}

/* The memory of its nodes is there from the first launch, or upload, on. */
static CUresult take_memory(const struct graph_exec *exec)
{
    for (size_t i = 0; i < exec->count; i++)
        if (exec->nodes[i]->memory)
            CU_TRY(pool_back(exec->nodes[i]->memory->pool, exec->nodes[i]->memory));
    return CUDA_SUCCESS;
}

/* What it frees may be another graph's. */
static void free_memory(const struct graph_exec *exec)
{
    for (size_t i = 0; i < exec->count; i++) {
        const struct node *node = exec->nodes[i];
        const struct memory *memory =
            node->type == CU_GRAPH_NODE_TYPE_MEM_FREE ? memory_find(node->address) : NULL;
        if (memory && memory->pool)
            pool_loosen(memory->pool, memory);
    }
}

static CUresult upload(CUgraphExec handle, CUstream on)
{
    CU_STREAM(stream, on);
    CU_REQUIRE(exec_of(handle), CUDA_ERROR_INVALID_HANDLE);
    return take_memory(handle);
}

static CUresult instantiate_with(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    CU_ARGUMENT(params);
    CUresult result = graph_instantiate(out, graph, params->flags);
    params->hErrNode_out = NULL;
    if (result == CUDA_SUCCESS && params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)
        result = upload(*out, params->hUploadStream);
    params->result_out = result != CUDA_SUCCESS;
    return result;
}

CU_TWINS(_ptsz, cuGraphInstantiateWithParams,
         (CUgraphExec * out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params),
         instantiate_with(out, graph, params))

static CUresult get_flags(CUgraphExec handle, uint64_t *flags)
{
    CU_ARGUMENT(exec_of(handle) && flags);
    *flags = handle->flags;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuGraphExecGetFlags, (CUgraphExec exec, uint64_t *flags), get_flags(exec, flags))
CU_TWINS(_ptsz, cuGraphUpload, (CUgraphExec exec, CUstream stream), upload(exec, OWN(stream)))

/* Into a stream that captures, a launch goes as the nodes that it consists of. */
static CUresult launch(CUgraphExec handle, CUstream on)
{
    CU_STREAM(stream, on);
    struct graph_exec *exec = exec_of(handle);
    CU_REQUIRE(exec, CUDA_ERROR_INVALID_HANDLE);
    CU_REQUIRE(!exec->inner || !stream->capture, CUDA_ERROR_NOT_SUPPORTED);
    CU_TRY(take_memory(exec));
    struct op *end = op_new(OP_NOTHING, 0);
    CU_REQUIRE(end, CUDA_ERROR_OUT_OF_MEMORY);
    if (!stream->capture) {
        end->exec = exec;
        exec->running++;
    }
    CUresult result = exec->inner ? engine_submit(stream, graph_reset(exec->graph)) : CUDA_SUCCESS;
    for (size_t i = 0; i < exec->count && result == CUDA_SUCCESS; i++)
        if (exec->patterns[i] && !exec->disabled[i])
            result = engine_submit(stream, op_copy(exec->patterns[i]));
    CUresult ended = engine_submit(stream, end);
    if (!stream->capture)
        free_memory(exec);
    return result == CUDA_SUCCESS ? ended : result;
}

CU_TWINS(_ptsz, cuGraphLaunch, (CUgraphExec exec, CUstream stream), launch(exec, OWN(stream)))

static CUresult destroy(CUgraphExec handle)
{
    struct graph_exec *exec = exec_of(handle);
    CU_REQUIRE(exec, CUDA_ERROR_INVALID_HANDLE);
    if (exec->running) {
        handle_forget(exec);
        exec->dead = true;
    } else {
        free_exec(exec);
    }
    return CUDA_SUCCESS;
}

CU_EXPORT(cuGraphExecDestroy, (CUgraphExec exec), destroy(exec))

/* Takes the parameters of another graph of the same shape. */
static CUresult update(CUgraphExec handle, CUgraph graph, CUgraphNode *bad)
{
    CUgraphExec fresh;
    struct graph_exec *exec = exec_of(handle);
    *bad = NULL;
    CU_ARGUMENT(exec && graph_of(graph));
    CU_REQUIRE(!exec->inner, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    CU_TRY(graph_instantiate(&fresh, graph, exec->flags));
    CUresult result = fresh->count == exec->count ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    for (size_t i = 0; i < exec->count && result == CUDA_SUCCESS; i++)
        if (fresh->nodes[i]->type !=
                (exec->patterns[i] ? exec->patterns[i]->node_type : fresh->nodes[i]->type) ||
            !fresh->patterns[i] != !exec->patterns[i]) {
            *bad = fresh->nodes[i];
            result = CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
        }
    for (size_t i = 0; i < exec->count && result == CUDA_SUCCESS; i++) {
        struct op *old = exec->patterns[i];
        exec->patterns[i] = fresh->patterns[i];
        fresh->patterns[i] = old;
    }
    free_exec(fresh);
    return result;
}

static CUresult update_v1(CUgraphExec exec, CUgraph graph, CUgraphNode *bad, int *result)
{
    CUgraphNode node;
    CUresult updated = update(exec, graph, &node);
    if (bad)
        *bad = node;
    if (result)
        *result = updated == CUDA_SUCCESS ? 0 : node ? 3 : 2; /* topology, type of a node */
    return updated;
}

CU_EXPORT(cuGraphExecUpdate, (CUgraphExec exec, CUgraph graph, CUgraphNode *bad, int *result),
          update_v1(exec, graph, bad, result))

static CUresult update_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
    CU_ARGUMENT(info);
    info->errorFromNode = NULL;
    return update_v1(exec, graph, &info->errorNode, &info->result);
}

CU_EXPORT(cuGraphExecUpdate_v2, (CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info),
          update_v2(exec, graph, info))

static CUresult find_node(CUgraphExec exec, CUgraphNode node, bool **out)
{
    CU_ARGUMENT(exec_of(exec) && out);
    for (size_t i = 0; i < exec->count; i++)
        if (exec->nodes[i] == node) {
            *out = &exec->disabled[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult set_enabled(CUgraphExec exec, CUgraphNode node, unsigned int enabled)
{
    bool *disabled;
    CU_TRY(find_node(exec, node, &disabled));
    *disabled = !enabled;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuGraphNodeSetEnabled, (CUgraphExec exec, CUgraphNode node, unsigned int enabled),
          set_enabled(exec, node, enabled))

static CUresult get_enabled(CUgraphExec exec, CUgraphNode node, unsigned int *enabled)
{
    bool *disabled;
    CU_ARGUMENT(enabled);
    CU_TRY(find_node(exec, node, &disabled));
    *enabled = !*disabled;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuGraphNodeGetEnabled, (CUgraphExec exec, CUgraphNode node, unsigned int *enabled),
          get_enabled(exec, node, enabled))
