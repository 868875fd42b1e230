/* Conditional nodes: values that kernels set, and graphs that run, or run again, by what they are. */
#include "graph.h"

#include "engine.h"
#include "stream.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct condition {
    struct condition *next; /* of the graph */
    _Atomic uint32_t value;
    uint32_t initial;
    bool resets; /* to that, whenever the graph is launched */
};

/* The data of an operation that chooses. */
struct choice {
    struct condition *condition;
    int type;
    size_t count;
    struct graph_exec *bodies[];
};

static struct condition *condition_of(CUgraphConditionalHandle handle)
{
    void *found = (void *)(uintptr_t)handle;
    return handle_is(found, KIND_CONDITION) ? found : NULL;
}

static CUresult create(CUgraphConditionalHandle *out, CUgraph graph, CUcontext context, unsigned int initial,
                       unsigned int flags)
{
    CU_ARGUMENT(out && graph_of(graph) && flags <= CU_GRAPH_COND_ASSIGN_DEFAULT);
    CU_REQUIRE(!context || handle_is(context, KIND_CONTEXT), CUDA_ERROR_INVALID_CONTEXT);
    struct condition *made = handle_new(KIND_CONDITION, sizeof(*made));
    CU_REQUIRE(made, CUDA_ERROR_OUT_OF_MEMORY);
    made->initial = initial;
    made->resets = flags & CU_GRAPH_COND_ASSIGN_DEFAULT;
    made->next = graph->conditions;
    graph->conditions = made;
    *out = (uintptr_t)made;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuGraphConditionalHandleCreate,
          (CUgraphConditionalHandle * out, CUgraph graph, CUcontext context, unsigned int initial,
           unsigned int flags),
          create(out, graph, context, initial, flags))

bool condition_exists(uint64_t handle)
{
    return condition_of(handle);
}

/* By a kernel, which runs without the lock. */
void condition_set(uint64_t handle, uint32_t value)
{
    pthread_mutex_lock(&driver()->lock);
    struct condition *condition = condition_of(handle);
    if (condition)
        condition->value = value;
    pthread_mutex_unlock(&driver()->lock);
}

void graph_drop_conditions(struct graph *graph)
{
    for (struct condition *one = graph->conditions, *next; one; one = next) {
        next = one->next;
        handle_free(one);
    }
}

CUresult graph_add_condition(CUgraphNode *out, CUgraph graph, const CUgraphNode *needs, size_t count,
                             CUDA_CONDITIONAL_NODE_PARAMS *params)
{
    unsigned int most = params->type == CU_GRAPH_COND_TYPE_SWITCH ? UINT16_MAX
                        : params->type == CU_GRAPH_COND_TYPE_IF   ? 2
                                                                  : 1;
    CU_ARGUMENT(out && graph_of(graph) && condition_of(params->handle));
    CU_ARGUMENT(params->type >= 0 && params->type <= CU_GRAPH_COND_TYPE_SWITCH);
    CU_ARGUMENT(params->size && params->size <= most);
    struct graph **bodies = calloc(params->size, sizeof(struct graph *));
    CUresult result = bodies ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned int i = 0; i < params->size && result == CUDA_SUCCESS; i++)
        result = graph_create(&bodies[i]);
    struct node *node = NULL;
    if (result == CUDA_SUCCESS)
        result = graph_add(graph, CU_GRAPH_NODE_TYPE_CONDITIONAL, NULL, needs, count, &node);
    for (unsigned int i = 0; bodies && i < params->size && bodies[i]; i++)
        if (result == CUDA_SUCCESS)
            bodies[i]->is_child = true;
        else
            graph_release(bodies[i]);
    if (result != CUDA_SUCCESS) {
        free(bodies);
        return result;
    }
    node->condition = condition_of(params->handle);
    node->choice = params->type;
    node->bodies = bodies;
    node->body_count = params->size;
    params->phGraph_out = bodies;
    *out = node;
    return CUDA_SUCCESS;
}

CUresult graph_choice(struct graph_exec *exec, const struct node *node, struct op **out)
{
    struct op *op =
        op_new(OP_CHOOSE, sizeof(struct choice) + node->body_count * sizeof(struct graph_exec *));
    CU_REQUIRE(op, CUDA_ERROR_OUT_OF_MEMORY);
    struct choice *choice = op_data(op);
    choice->condition = node->condition;
    choice->type = node->choice;
    choice->count = node->body_count;
    for (size_t i = 0; i < node->body_count; i++) {
        CUresult result = graph_instantiate(&choice->bodies[i], node->bodies[i], 0);
        if (result != CUDA_SUCCESS) {
            op_free(op);
            return result;
        }
        choice->bodies[i]->next = exec->inner;
        exec->inner = choice->bodies[i];
    }
    *out = op;
    return CUDA_SUCCESS;
}

static void put(struct op *before, struct op **last, const struct op *pattern)
{
    struct op *op = op_copy(pattern);
    if (!op)
        return;
    op->stream = before->stream;
    op->sequence = before->sequence;
    op->submitted = before->submitted;
    op->next = (*last)->next;
    (*last)->next = op;
    *last = op;
    if (!op->next)
        op->stream->tail = op;
    op->stream->depth++;
}

void graph_choose(struct op *op)
{
    const struct choice *choice = op_data(op);
    uint32_t value = choice->condition->value;
    size_t index = choice->type == CU_GRAPH_COND_TYPE_SWITCH ? value : !value;
    struct op *last = op;
    if (index >= choice->count)
        return;
    const struct graph_exec *body = choice->bodies[index];
    for (size_t i = 0; i < body->count; i++)
        if (body->patterns[i] && !body->disabled[i])
            put(op, &last, body->patterns[i]);
    if (choice->type == CU_GRAPH_COND_TYPE_WHILE)
        put(op, &last, op);
}

static void reset(const struct graph *graph)
{
    for (struct condition *one = graph->conditions; one; one = one->next)
        if (one->resets)
            one->value = one->initial;
    for (const struct node *node = graph->first; node; node = node->next)
        for (size_t i = 0; i < node->body_count; i++)
            reset(node->bodies[i]);
}

static void reset_all(struct op *op)
{
    const struct graph *graph;
    memcpy(&graph, op_data(op), sizeof(graph));
    reset(graph);
}

struct op *graph_reset(const struct graph *graph)
{
    struct op *op = op_new(OP_FREE, sizeof(graph)); /* whose effect keeps the lock */
    if (!op)
        return NULL;
    memcpy(op_data(op), &graph, sizeof(graph));
    op->run = reset_all;
    return op;
}
