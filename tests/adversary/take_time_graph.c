/* Ways of take_time: graphs and captures. */
#include "take_time.h"

#include <pthread.h>

struct kernel_node { /* CUDA_KERNEL_NODE_PARAMS_v2 */
    Handle function;
    unsigned grid[3], block[3], shared;
    void **values, **extra;
    Handle kernel, context;
};

static Handle instance_of(Handle graph)
{
    Handle made;
    CU(cuGraphInstantiateWithFlags, (Handle *, Handle, unsigned long long), &made, graph, 0);
    return made;
}

static void run(Handle instance, Handle stream, double us)
{
    CU(cuGraphLaunch, (Handle, Handle), instance, stream);
    used(us);
}

static Handle new_graph(void)
{
    Handle graph;
    CU(cuGraphCreate, (Handle *, unsigned), &graph, 0);
    return graph;
}

static struct kernel_node node_for(uint64_t *rounds, void **values)
{
    values[0] = rounds;
    return (struct kernel_node){
        .function = function, .grid = {BLOCKS, 1, 1}, .block = {THREADS, 1, 1}, .values = values};
}

static Handle add_kernel(Handle graph, Handle after, double us)
{
    Handle node;
    void *values[1];
    uint64_t rounds = (uint64_t)(us * rounds_a_us);
    struct kernel_node made = node_for(&rounds, values);
    CU(cuGraphAddKernelNode_v2, (Handle *, Handle, const Handle *, size_t, const void *), &node, graph,
       &after, after != NULL, &made);
    return node;
}

/* So many kernels, one after another. */
static Handle chain(int count, double us)
{
    Handle graph = new_graph(), last = NULL;
    for (int i = 0; i < count; i++)
        last = add_kernel(graph, last, us);
    return graph;
}

static void graphs(void)
{
    Handle stream = new_stream(), instance = instance_of(chain(100, 100));
    while (more())
        run(instance, stream, 10000);
}

static Handle captured(Handle stream, int kernels, double us)
{
    Handle graph;
    CU(cuStreamBeginCapture_v2, (Handle, int), stream, 2);
    for (int i = 0; i < kernels; i++)
        launch(stream, us);
    CU(cuStreamEndCapture, (Handle, Handle *), stream, &graph);
    used(-kernels * us);
    return graph;
}

struct replay {
    Handle instance;
    double us;
};

static void *replay(void *argument)
{
    struct replay *self = argument;
    CU(cuCtxSetCurrent, (Handle), context);
    while (more()) {
        run(self->instance, (Handle)2, self->us);
        pause_for(100);
    }
    return NULL;
}

/* Captured in one stream, launched in another thread's own. */
static void replayed_elsewhere(void)
{
    pthread_t made;
    struct replay self = {instance_of(captured(new_stream(), 10, 400)), 4000};
    pthread_create(&made, NULL, replay, &self);
    pthread_join(made, NULL);
}

/* While a stream captures, so that questions of the shim's own could break it. */
static void beside_a_capture(void)
{
    Handle stream = new_stream(), other = new_stream(), graph;
    while (more()) {
        CU(cuStreamBeginCapture_v2, (Handle, int), other, 0);
        launch(other, 5000);
        used(-5000);
        launch(stream, 2000);
        CU(cuStreamEndCapture, (Handle, Handle *), other, &graph);
        CU(cuGraphDestroy, (Handle), graph);
    }
}

/* An instance is learnt with a short kernel, and then given a long one. */
static void updated(void)
{
    Handle stream = new_stream(), graph = new_graph(), node = add_kernel(graph, NULL, 5);
    Handle instance = instance_of(graph);
    for (int i = 0; more(); i++) {
        double us = i % 40 == 39 ? 60000 : 5;
        void *values[1];
        uint64_t rounds = (uint64_t)(us * rounds_a_us);
        struct kernel_node made = node_for(&rounds, values);
        CU(cuGraphExecKernelNodeSetParams_v2, (Handle, Handle, const void *), instance, node, &made);
        run(instance, stream, us);
        wait_for(stream);
    }
}

static void many_graphs(void)
{
    enum { INSTANCES = 1500 };
    static Handle instances[INSTANCES];
    Handle stream = new_stream(), graph = chain(4, 500);
    for (int i = 0; i < INSTANCES; i++)
        instances[i] = instance_of(graph);
    for (int i = 0; more(); i++)
        run(instances[i % INSTANCES], stream, 2000);
}

/* A graph in a graph in a graph. */
static void nested(void)
{
    Handle stream = new_stream(), graph = chain(8, 500), node;
    for (int i = 0; i < 3; i++) {
        Handle outer = new_graph();
        CU(cuGraphAddChildGraphNode, (Handle *, Handle, const Handle *, size_t, Handle), &node, outer, NULL,
           0, graph);
        graph = outer;
    }
    for (Handle instance = instance_of(graph); more();)
        run(instance, stream, 4000);
}

/* Made, uploaded, launched, and given up at once. */
static void short_lived(void)
{
    Handle stream = new_stream(), graph = chain(2, 1000), copy;
    while (more()) {
        CU(cuGraphClone, (Handle *, Handle), &copy, graph);
        Handle instance = instance_of(copy);
        CU(cuGraphUpload, (Handle, Handle), instance, stream);
        run(instance, stream, 2000);
        CU(cuGraphExecDestroy, (Handle), instance);
        CU(cuGraphDestroy, (Handle), copy);
    }
}

static const char loop_text[] =
    ".version 8.0\n.target sm_70\n.address_size 64\n"
    ".extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);\n"
    ".visible .entry fill_u32(.param .u64 out, .param .u32 value, .param .u64 count)\n{\n"
    ".reg .u64 %w; .reg .u32 %v;\n"
    "ld.param.u64 %w, [out];\nld.param.u32 %v, [value];\nst.volatile.global.u32 [%w], %v;\nret;\n}\n"
    ".visible .entry sim_count_down(.param .u64 word, .param .u64 handle)\n{\n"
    ".reg .pred %p; .reg .u64 %w, %h; .reg .u32 %x, %v;\n"
    ".param .b64 out_handle; .param .b32 out_value;\n"
    "ld.param.u64 %w, [word];\nld.param.u64 %h, [handle];\n"
    "ld.volatile.global.u32 %x, [%w];\nsub.u32 %x, %x, 1;\nst.volatile.global.u32 [%w], %x;\n"
    "setp.ne.u32 %p, %x, 0;\nselp.u32 %v, 1, 0, %p;\n"
    "st.param.b64 [out_handle], %h;\nst.param.b32 [out_value], %v;\n"
    "call.uni cudaGraphSetConditional, (out_handle, out_value);\nret;\n}\n";

static Handle add_small(Handle graph, Handle after, Handle module, const char *name, void **values)
{
    Handle node;
    struct kernel_node made = {.grid = {1, 1, 1}, .block = {1, 1, 1}, .values = values};
    CU(cuModuleGetFunction, (Handle *, Handle, const char *), &made.function, module, name);
    CU(cuGraphAddKernelNode_v2, (Handle *, Handle, const Handle *, size_t, const void *), &node, graph,
       &after, after != NULL, &made);
    return node;
}

/* Kernels that the device repeats by itself, as often as memory says. */
static void looping(void)
{
    enum { CONDITIONAL = 13, TURNS = 40 };
    struct {
        int type, reserved[3];
        struct {
            uint64_t handle;
            int type;
            unsigned size;
            Handle *graphs;
            Handle context;
        } conditional;
        char rest[256];
    } loop = {.type = CONDITIONAL, .conditional = {.type = 1, .size = 1, .context = context}};
    Handle module, graph = new_graph(), stream = new_stream(), node;
    Address counter;
    uint64_t one = 1;
    uint32_t turns = TURNS;
    CU(cuModuleLoadData, (Handle *, const void *), &module, loop_text);
    CU(cuMemAlloc_v2, (Address *, size_t), &counter, 8);
    CU(cuGraphConditionalHandleCreate, (uint64_t *, Handle, Handle, unsigned, unsigned),
       &loop.conditional.handle, graph, context, 1, 1);
    Handle first = add_small(graph, NULL, module, "fill_u32", (void *[]){&counter, &turns, &one});
    CU(cuGraphAddNode, (Handle *, Handle, const Handle *, size_t, void *), &node, graph, &first, 1, &loop);
    Handle body = loop.conditional.graphs[0];
    add_small(body, add_kernel(body, NULL, 100), module, "sim_count_down",
              (void *[]){&counter, &loop.conditional.handle});
    for (Handle instance = instance_of(graph); more();)
        run(instance, stream, TURNS * 100);
}

const struct way graph_ways[] = {{"graphs", graphs, false},
                                 {"replay", replayed_elsewhere, false},
                                 {"capture", beside_a_capture, false},
                                 {"graph-update", updated, false},
                                 {"many-graphs", many_graphs, false},
                                 {"nested-graphs", nested, false},
                                 {"short-lived-graphs", short_lived, false},
                                 {"graph-loop", looping, false},
                                 {0}};
