/* The memory that nodes of a graph allocate. */
#include "graph_footprint.h"

#include <stdlib.h>

enum { DEEPEST = 512, FIRST_ROOM = 64 };

static CUresult add_allocation(struct footprint *in, CUgraphNode node)
{
    CUDA_MEM_ALLOC_NODE_PARAMS allocation;
    CUresult result = REAL(cuGraphMemAllocNodeGetParams)(node, &allocation);
    if (result != CUDA_SUCCESS)
        return result;
    if (in->count == in->room) {
        in->room = in->room ? in->room * 2 : FIRST_ROOM;
        void *longer = realloc(in->pieces, in->room * sizeof(struct piece));
        if (!longer)
            return CUDA_ERROR_OUT_OF_MEMORY;
        in->pieces = longer;
    }
    in->pieces[in->count++] = (struct piece){allocation.dptr / PAGE * PAGE,
                                             round_capped(allocation.dptr + allocation.bytesize, PAGE),
                                             allocation.poolProps.location.id};
    return result;
}

static CUresult add_graph(struct footprint *in, CUgraph graph, int depth);

static CUresult add_node(struct footprint *in, CUgraphNode node, int depth)
{
    CUgraph child;
    int type = -1;
    CUresult result = REAL(cuGraphNodeGetType)(node, &type);
    if (result == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_GRAPH) {
        result = REAL(cuGraphChildGraphNodeGetGraph)(node, &child);
        return result == CUDA_SUCCESS ? add_graph(in, child, depth + 1) : result;
    }
    return result == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? add_allocation(in, node)
                                                                          : result;
}

static CUresult add_graph(struct footprint *in, CUgraph graph, int depth)
{
    size_t count = 0;
    CUresult result =
        depth < DEEPEST ? REAL(cuGraphGetNodes)(graph, NULL, &count) : CUDA_ERROR_NOT_SUPPORTED;
    if (result != CUDA_SUCCESS || !count)
        return result;
    CUgraphNode *nodes = calloc(count, sizeof(CUgraphNode));
    result = nodes ? REAL(cuGraphGetNodes)(graph, nodes, &count) : CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = add_node(in, nodes[i], depth);
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
    CUresult result = add_graph(in, graph, 0);
    if (in->count)
        qsort(in->pieces, in->count, sizeof(*in->pieces), compare);
    return result;
}
