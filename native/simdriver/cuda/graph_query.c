/* Lists of nodes and edges. Each is written up to `*count` entries; without room for any, only counted. */
#include "graph.h"

#include <stdio.h>
#include <string.h>

struct list {
    CUgraphNode *nodes, *others; /* NULL: count only */
    CUgraphEdgeData *edges;
    size_t room, found;
};

static void put(struct list *list, struct node *node, struct node *other)
{
    if (list->found < list->room) {
        if (list->nodes)
            list->nodes[list->found] = node;
        if (list->others)
            list->others[list->found] = other;
        if (list->edges)
            memset(&list->edges[list->found], 0, sizeof(*list->edges));
    }
    list->found++;
}

/* What is beyond the end is filled with nulls, and the number of entries returned. */
static CUresult finish(struct list *list, size_t *count)
{
    for (size_t i = list->found; i < list->room; i++) {
        if (list->nodes)
            list->nodes[i] = NULL;
        if (list->others)
            list->others[i] = NULL;
    }
    *count = list->nodes && list->found > list->room ? list->room : list->found;
    return CUDA_SUCCESS;
}

static CUresult get_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count, bool roots_only)
{
    CU_ARGUMENT(graph_of(graph) && count);
    struct list list = {.nodes = nodes, .room = nodes ? *count : 0};
    for (struct node *node = graph->first; node; node = node->next)
        if (!roots_only || node->need_count == 0)
            put(&list, node, NULL);
    return finish(&list, count);
}

CU_EXPORT(cuGraphGetNodes, (CUgraph graph, CUgraphNode *nodes, size_t *count),
          get_nodes(graph, nodes, count, false))
CU_EXPORT(cuGraphGetRootNodes, (CUgraph graph, CUgraphNode *nodes, size_t *count),
          get_nodes(graph, nodes, count, true))

static CUresult get_edges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges,
                          size_t *count)
{
    CU_ARGUMENT(graph_of(graph) && count && !from == !to);
    struct list list = {.nodes = from, .others = to, .edges = edges, .room = from ? *count : 0};
    for (struct node *node = graph->first; node; node = node->next)
        for (size_t i = 0; i < node->need_count; i++)
            put(&list, node->needs[i], node);
    return finish(&list, count);
}

CU_EXPORT(cuGraphGetEdges, (CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count),
          get_edges(graph, from, to, NULL, count))
CU_EXPORT(cuGraphGetEdges_v2,
          (CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges, size_t *count),
          get_edges(graph, from, to, edges, count))

static CUresult get_needs(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *count)
{
    CU_ARGUMENT(node_of(node) && count);
    struct list list = {.nodes = nodes, .edges = edges, .room = nodes ? *count : 0};
    for (size_t i = 0; i < node->need_count; i++)
        put(&list, node->needs[i], NULL);
    return finish(&list, count);
}

CU_EXPORT(cuGraphNodeGetDependencies, (CUgraphNode node, CUgraphNode *nodes, size_t *count),
          get_needs(node, nodes, NULL, count))
CU_EXPORT(cuGraphNodeGetDependencies_v2,
          (CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *count),
          get_needs(node, nodes, edges, count))

static CUresult get_dependents(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *count)
{
    CU_ARGUMENT(node_of(node) && count);
    struct list list = {.nodes = nodes, .edges = edges, .room = nodes ? *count : 0};
    for (struct node *other = node->graph->first; other; other = other->next)
        for (size_t i = 0; i < other->need_count; i++)
            if (other->needs[i] == node)
                put(&list, other, NULL);
    return finish(&list, count);
}

CU_EXPORT(cuGraphNodeGetDependentNodes, (CUgraphNode node, CUgraphNode *nodes, size_t *count),
          get_dependents(node, nodes, NULL, count))
CU_EXPORT(cuGraphNodeGetDependentNodes_v2,
          (CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *count),
          get_dependents(node, nodes, edges, count))

static CUresult print(CUgraph graph, const char *path)
{
    CU_ARGUMENT(graph_of(graph) && path);
    FILE *out = fopen(path, "we");
    CU_REQUIRE(out, CUDA_ERROR_OPERATING_SYSTEM);
    fputs("digraph {\n", out);
    for (const struct node *node = graph->first; node; node = node->next) {
        fprintf(out, "  \"%p\" [label=\"type %d\"]\n", (const void *)node, node->type);
        for (size_t i = 0; i < node->need_count; i++)
            fprintf(out, "  \"%p\" -> \"%p\"\n", (const void *)node->needs[i], (const void *)node);
    }
    fputs("}\n", out);
    return fclose(out) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CU_EXPORT(cuGraphDebugDotPrint, (CUgraph graph, const char *path, unsigned int flags),
          ((void)flags, print(graph, path)))
