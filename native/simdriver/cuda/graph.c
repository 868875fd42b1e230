#include "graph.h"

#include "engine.h"
#include "memory.h"
#include "pool.h"

#include <stdlib.h>
#include <string.h>

struct graph *graph_of(CUgraph handle)
{
    return handle_is(handle, KIND_GRAPH) ? handle : NULL;
}

struct node *node_of(CUgraphNode handle)
{
    return handle_is(handle, KIND_NODE) ? handle : NULL;
}

CUresult graph_create(struct graph **out)
{
    struct graph *graph = handle_new(KIND_GRAPH, sizeof(*graph));
    CU_REQUIRE(graph, CUDA_ERROR_OUT_OF_MEMORY);
    graph->references = 1;
    graph->end = &graph->first;
    *out = graph;
    return CUDA_SUCCESS;
}

static void free_node(struct node *node)
{
    if (node->child)
        graph_release(node->child);
    if (node->memory)
        pool_free(node->memory);
    for (size_t i = 0; i < node->body_count; i++)
        graph_release(node->bodies[i]);
    free(node->bodies);
    op_free(node->pattern);
    free(node->pointers);
    free(node->needs);
    handle_free(node);
}

void graph_release(struct graph *graph)
{
    if (--graph->references)
        return;
    for (struct node *node = graph->first, *next; node; node = next) {
        next = node->next;
        free_node(node);
    }
    graph_drop_objects(graph);
    graph_drop_conditions(graph);
    handle_free(graph);
}

static CUresult add_needs(struct node *node, CUgraphNode const *needs, size_t count)
{
    if (!count)
        return CUDA_SUCCESS;
    struct node **longer = realloc(node->needs, (node->need_count + count) * sizeof(*longer));
    CU_REQUIRE(longer, CUDA_ERROR_OUT_OF_MEMORY);
    node->needs = longer;
    memcpy(longer + node->need_count, needs, count * sizeof(*longer));
    node->need_count += count;
    return CUDA_SUCCESS;
}

CUresult graph_add(struct graph *graph, int type, struct op *pattern, CUgraphNode const *needs, size_t count,
                   struct node **out)
{
    bool good = count == 0 || needs;
    for (size_t i = 0; good && i < count; i++)
        good = node_of(needs[i]) && needs[i]->graph == graph;
    struct node *node = good ? handle_new(KIND_NODE, sizeof(*node)) : NULL;
    if (!node || add_needs(node, needs, count) != CUDA_SUCCESS) {
        op_free(pattern);
        handle_free(node);
        return good ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    }
    node->graph = graph;
    node->type = type;
    node->pattern = pattern;
    *graph->end = node;
    graph->end = &node->next;
    graph->count++;
    *out = node;
    return CUDA_SUCCESS;
}

struct node **graph_order(const struct graph *graph)
{
    struct node **order = malloc((graph->count + 1) * sizeof(struct node *));
    size_t placed = 0, before = 1;
    for (struct node *node = graph->first; node; node = node->next)
        node->mark = 0;
    while (order && placed < graph->count && placed != before) {
        before = placed;
        for (struct node *node = graph->first; node; node = node->next) {
            bool ready = !node->mark;
            for (size_t i = 0; ready && i < node->need_count; i++)
                ready = node->needs[i]->mark != 0;
            if (ready) {
                order[placed++] = node;
                node->mark = placed;
            }
        }
    }
    if (order && placed < graph->count) {
        free(order); /* a cycle */
        return NULL;
    }
    return order;
}

CUresult graph_clone(const struct graph *graph, struct graph **out)
{
    struct graph *clone;
    struct node **order = graph_order(graph);
    struct node **made = calloc(graph->count + 1, sizeof(*made));
    CUresult result = order && made ? graph_create(&clone) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        free(order);
        free(made);
        return result;
    }
    for (size_t i = 0; i < graph->count && result == CUDA_SUCCESS; i++) {
        struct node *from = order[i];
        struct op *pattern = from->pattern ? op_copy(from->pattern) : NULL;
        if (from->bodies) {
            result = CUDA_ERROR_NOT_SUPPORTED; /* as with the driver: a condition is that of one node */
            break;
        }
        result = graph_add(clone, from->type, pattern, NULL, 0, &made[i]);
        for (size_t n = 0; result == CUDA_SUCCESS && n < from->need_count; n++)
            result = add_needs(made[i], &made[from->needs[n]->mark - 1], 1);
        if (result == CUDA_SUCCESS && from->child)
            result = graph_clone(from->child, &made[i]->child);
        if (result != CUDA_SUCCESS)
            break;
        made[i]->origin = from;
        made[i]->address = from->address;
        made[i]->disabled = from->disabled;
    }
    free(order);
    free(made);
    if (result != CUDA_SUCCESS)
        graph_release(clone);
    else
        *out = clone;
    return result;
}

static CUresult create(CUgraph *out, unsigned int flags)
{
    CU_ARGUMENT(out && flags == 0);
    return graph_create(out);
}

CU_EXPORT(cuGraphCreate, (CUgraph * out, unsigned int flags), create(out, flags))

static CUresult destroy(CUgraph handle)
{
    struct graph *graph = graph_of(handle);
    CU_ARGUMENT(graph && !graph->is_child);
    handle_forget(graph);
    graph_release(graph);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuGraphDestroy, (CUgraph graph), destroy(graph))

static CUresult clone_graph(CUgraph *out, CUgraph from)
{
    CU_ARGUMENT(out && graph_of(from));
    for (const struct node *node = from->first; node; node = node->next)
        CU_REQUIRE(!node->memory, CUDA_ERROR_NOT_SUPPORTED); /* as with the driver: it has one owner */
    return graph_clone(from, out);
}

CU_EXPORT(cuGraphClone, (CUgraph * out, CUgraph from), clone_graph(out, from))

static CUresult find_in_clone(CUgraphNode *out, CUgraphNode origin, CUgraph graph)
{
    CU_ARGUMENT(out && graph_of(graph));
    for (struct node *node = graph->first; node; node = node->next)
        if (node->origin == origin) {
            *out = node;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

CU_EXPORT(cuGraphNodeFindInClone, (CUgraphNode * out, CUgraphNode origin, CUgraph graph),
          find_in_clone(out, origin, graph))

static CUresult get_type(CUgraphNode node, int *type)
{
    CU_ARGUMENT(node_of(node) && type);
    *type = node->type;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuGraphNodeGetType, (CUgraphNode node, int *type), get_type(node, type))

static void remove_need(struct node *node, size_t index)
{
    node->need_count--;
    memmove(&node->needs[index], &node->needs[index + 1],
            (node->need_count - index) * sizeof(node->needs[0]));
}

static CUresult destroy_node(CUgraphNode handle)
{
    struct node *node = node_of(handle);
    CU_ARGUMENT(node);
    CU_REQUIRE(!node->memory, CUDA_ERROR_NOT_PERMITTED);
    struct graph *graph = node->graph;
    for (struct node **at = &graph->first; *at;) {
        if (*at == node) {
            *at = node->next;
            continue;
        }
        for (size_t i = 0; i < (*at)->need_count;)
            if ((*at)->needs[i] == node)
                remove_need(*at, i);
            else
                i++;
        at = &(*at)->next;
        graph->end = at;
    }
    if (!graph->first)
        graph->end = &graph->first;
    graph->count--;
    free_node(node);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuGraphDestroyNode, (CUgraphNode node), destroy_node(node))

static CUresult add_dependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    CU_ARGUMENT(graph_of(graph) && (count == 0 || (from && to)));
    for (size_t i = 0; i < count; i++)
        CU_ARGUMENT(node_of(from[i]) && node_of(to[i]) && from[i]->graph == graph && to[i]->graph == graph &&
                    from[i] != to[i]);
    for (size_t i = 0; i < count; i++)
        CU_TRY(add_needs(to[i], &from[i], 1));
    return CUDA_SUCCESS;
}

CU_EXPORT(cuGraphAddDependencies,
          (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count),
          add_dependencies(graph, from, to, count))

CU_API CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                          const CUgraphEdgeData *edges, size_t count)
{
    (void)edges; /* kinds of edges only let parts of kernels overlap */
    CU_CALL(add_dependencies(graph, from, to, count));
}

static CUresult remove_dependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                    size_t count)
{
    CU_ARGUMENT(graph_of(graph) && (count == 0 || (from && to)));
    for (size_t i = 0; i < count; i++) {
        size_t at = 0;
        CU_ARGUMENT(node_of(to[i]) && to[i]->graph == graph);
        while (at < to[i]->need_count && to[i]->needs[at] != from[i])
            at++;
        CU_ARGUMENT(at < to[i]->need_count);
        remove_need(to[i], at);
    }
    return CUDA_SUCCESS;
}

CU_EXPORT(cuGraphRemoveDependencies,
          (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count),
          remove_dependencies(graph, from, to, count))
CU_EXPORT(cuGraphRemoveDependencies_v2,
          (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *edges,
           size_t count),
          ((void)edges, remove_dependencies(graph, from, to, count)))
