/* Conditional nodes of graphs, as programs see them; a part of cuda_abi.h. */
#ifndef NVC_SIM_CONDITION_ABI_H
#define NVC_SIM_CONDITION_ABI_H

#include <stdint.h>

struct context;
struct graph;

enum { CU_GRAPH_NODE_TYPE_CONDITIONAL = 13 };
enum { CU_GRAPH_COND_TYPE_IF = 0, CU_GRAPH_COND_TYPE_WHILE = 1, CU_GRAPH_COND_TYPE_SWITCH = 2 };
enum { CU_GRAPH_COND_ASSIGN_DEFAULT = 1 };

typedef uint64_t CUgraphConditionalHandle;

typedef struct {
    CUgraphConditionalHandle handle;
    int type;
    unsigned int size;          /* of phGraph_out */
    struct graph **phGraph_out; /* the driver's own */
    struct context *ctx;
} CUDA_CONDITIONAL_NODE_PARAMS;

#endif
