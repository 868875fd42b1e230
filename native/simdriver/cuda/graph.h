/* Graphs: patterns of operations with an order, launched as one. */
#pragma once

#include "driver.h"

struct node {
    struct graph *graph;
    struct node *next; /* in the order of their making */
    int type;          /* CU_GRAPH_NODE_TYPE_* */
    bool disabled;
    struct op *pattern;          /* NULL: nothing to execute */
    struct graph *child;         /* of a node that is a graph */
    struct memory *memory;       /* of one that allocates */
    uint64_t address;            /* of one that allocates or frees */
    struct condition *condition; /* of one that chooses, by `choice`, CU_GRAPH_COND_TYPE_*, among `bodies` */
    int choice;
    struct graph **bodies;
    size_t body_count;
    struct node *origin; /* what it is a clone of */
    void **pointers;     /* to the arguments of a kernel, as a program asks for them */
    struct node **needs; /* what comes before */
    size_t need_count;
    size_t mark; /* of algorithms */
};

struct graph {
    uint32_t references; /* handle, instances, parent */
    bool is_child;
    struct node *first, **end;
    size_t count;
    struct held_object *held;
    struct condition *conditions;
};

struct graph_exec {
    struct graph *graph; /* kept for its memory */
    uint64_t flags;
    size_t count;
    struct op **patterns; /* in an order that respects all dependencies */
    struct node **nodes;  /* that they come from */
    bool *disabled;
    struct graph_exec *inner, *next; /* bodies of its conditional nodes */
    uint32_t running;
    bool dead;
};

/* graph.c */
CUresult graph_create(struct graph **out);
void graph_release(struct graph *graph);
/* Adds a node and takes `pattern` in any case; `needs` are nodes of the graph. */
CUresult graph_add(struct graph *graph, int type, struct op *pattern, CUgraphNode const *needs, size_t count,
                   struct node **out);
CUresult graph_clone(const struct graph *graph, struct graph **out);
struct graph *graph_of(CUgraph handle);
struct node *node_of(CUgraphNode handle);

/* The nodes in an order that respects their needs; NULL: a cycle, or out of memory. To be freed. */
struct node **graph_order(const struct graph *graph);

/* graph_nodes.c */
CUresult node_pattern(const CUgraphNodeParams *params, struct op **out);
CUresult kernel_pattern(const CUDA_KERNEL_NODE_PARAMS *params, bool with_kernel, struct op **out);

/* graph_condition.c */
CUresult graph_add_condition(CUgraphNode *out, CUgraph graph, const CUgraphNode *needs, size_t count,
                             CUDA_CONDITIONAL_NODE_PARAMS *params);
void graph_drop_conditions(struct graph *graph);
/* The pattern of a conditional node; instances of its bodies become parts of `exec`. */
CUresult graph_choice(struct graph_exec *exec, const struct node *node, struct op **out);
/* What gives all conditions their initial values; NULL: out of memory. */
struct op *graph_reset(const struct graph *graph);

/* graph_exec.c */
CUresult graph_instantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags);
void graph_exec_done(struct graph_exec *exec); /* a launch of it has ended */

/* graph_memory.c */
CUresult graph_add_allocation(CUgraphNode *out, CUgraph graph, const CUgraphNode *needs, size_t count,
                              CUDA_MEM_ALLOC_NODE_PARAMS *params);
CUresult graph_add_free(CUgraphNode *out, CUgraph graph, const CUgraphNode *needs, size_t count,
                        CUdeviceptr address);
void graph_drop_objects(struct graph *graph);

/* capture.c */
CUresult capture_allocate(struct stream *stream, struct pool *pool, size_t size, CUdeviceptr *out);
CUresult capture_free(struct stream *stream, CUdeviceptr address);
