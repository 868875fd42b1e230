/* The memory that nodes of a graph allocate. */
#include "graph_footprint.h"

#include <stdlib.h>

/* One place more in a list. */
static bool make_room(void **list, size_t size, size_t count, size_t *room)
{
    size_t more = *room ? *room * 2 : 64;
    if (count < *room)
        return true;
    void *longer = realloc(*list, more * size);
    if (!longer)
        return false;
    *list = longer;
    *room = more;
    return true;
}

static CUresult add_graph(struct footprint *in, CUgraph graph)
{
    if (!make_room((void **)&in->graphs, sizeof(CUgraph), in->graph_count, &in->graph_room))
        return CUDA_ERROR_OUT_OF_MEMORY;
    in->graphs[in->graph_count++] = graph;
    return CUDA_SUCCESS;
}

static CUresult add_allocation(struct footprint *in, CUgraphNode node)
{
    CUDA_MEM_ALLOC_NODE_PARAMS allocation;
    CUresult result = REAL(cuGraphMemAllocNodeGetParams)(node, &allocation);
    if (result == CUDA_SUCCESS &&
        !make_room((void **)&in->pieces, sizeof(struct piece), in->count, &in->room))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS)
        in->pieces[in->count++] = (struct piece){allocation.dptr / PAGE * PAGE,
                                                 round_capped(allocation.dptr + allocation.bytesize, PAGE),
                                                 allocation.poolProps.location.id};
    return result;
}

static CUresult add_node(struct footprint *in, CUgraphNode node)
{
    CUgraph child;
    int type = -1;
    CUresult result = REAL(cuGraphNodeGetType)(node, &type);
    if (result == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_GRAPH) {
        result = REAL(cuGraphChildGraphNodeGetGraph)(node, &child);
        return result == CUDA_SUCCESS ? add_graph(in, child) : result;
    }
    return result == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? add_allocation(in, node)
                                                                          : result;
}

static CUresult add_nodes(struct footprint *in, CUgraph graph)
{
    size_t count = 0;
    CUresult result = REAL(cuGraphGetNodes)(graph, NULL, &count);
    if (result != CUDA_SUCCESS || !count)
        return result;
    CUgraphNode *nodes = calloc(count, sizeof(CUgraphNode));
    result = nodes ? REAL(cuGraphGetNodes)(graph, nodes, &count) : CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = add_node(in, nodes[i]);
    free(nodes);
    return result;
}

static int compare(const void *a, const void *b)
{
    const struct piece *one = a, *two = b;
    if (one->ordinal != two->ordinal)
        return one->ordinal < two->ordinal ? -1 : 1;
    return one->from < two->from ? -1 : one->from > two->from;
}

CUresult footprint_measure(struct footprint *in, CUgraph graph)
{
    *in = (struct footprint){0};
    if (!process())
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = add_graph(in, graph);
    while (result == CUDA_SUCCESS && in->graph_count)
        result = add_nodes(in, in->graphs[--in->graph_count]);
    free(in->graphs);
    if (in->count)
        qsort(in->pieces, in->count, sizeof(*in->pieces), compare);
    return result;
}
