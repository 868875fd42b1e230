/* A graph with a loop on the device: a conditional node whose body runs as often as a kernel in it says (CUDA 12.4). It
 * is launched for so many seconds, and prints how often the body has run and how long that took; the body has 16 KiB of
 * local memory a thread where `local` is 1. Usage: vgpu_while SECONDS TURNS ROUNDS LOCAL, where a launch makes TURNS
 * of the body and each has ROUNDS of a loop. With SECONDS 0: one launch, `done`, and it waits for the end of its input.
 *
 * The function of the device runtime that sets a condition is one of those that the driver itself links, as vprintf. */
#include "vgpu_driver.h"

#include <stdint.h>
#include <string.h>

static const char text[] =
    ".version 8.0\n.target sm_70\n.address_size 64\n"
    ".extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);\n"
    ".visible .entry begin(.param .u64 counters)\n{\n"
    ".reg .u64 %c; .reg .u32 %z;\n"
    "ld.param.u64 %c, [counters];\nmov.u32 %z, 0;\nst.volatile.global.u32 [%c], %z;\nret;\n}\n"
    ".visible .entry body(.param .u64 counters, .param .u64 handle, .param .u64 rounds, .param .u32 "
    "turns)\n{\n"
    ".reg .pred %p; .reg .u64 %c, %h, %n, %i; .reg .u32 %x, %t, %v; .shared .align 4 .u32 s;\n"
    ".param .b64 out_handle; .param .b32 out_value;\n"
    "ld.param.u64 %c, [counters];\nld.param.u64 %h, [handle];\nld.param.u64 %n, [rounds];\n"
    "ld.param.u32 %t, [turns];\nmov.u64 %i, 0;\nmov.u32 %x, 1;\n"
    "L:\nst.volatile.shared.u32 [s], %x;\nld.volatile.shared.u32 %x, [s];\n"
    "add.u64 %i, %i, 1;\nsetp.lt.u64 %p, %i, %n;\n@%p bra L;\n"
    "ld.volatile.global.u32 %x, [%c];\nadd.u32 %x, %x, 1;\nst.volatile.global.u32 [%c], %x;\n"
    "setp.lt.u32 %p, %x, %t;\nselp.u32 %v, 1, 0, %p;\n"
    "ld.volatile.global.u32 %x, [%c+4];\nadd.u32 %x, %x, 1;\nst.volatile.global.u32 [%c+4], %x;\n"
    "st.param.b64 [out_handle], %h;\nst.param.b32 [out_value], %v;\n"
    "call.uni cudaGraphSetConditional, (out_handle, out_value);\nret;\n}\n"
    ".visible .entry greedy(.param .u64 counters)\n{\n"
    ".local .align 8 .b8 own[16384]; .reg .u64 %c, %o, %a, %i; .reg .u32 %x; .reg .pred %p;\n"
    "ld.param.u64 %c, [counters];\nmov.u64 %o, own;\nmov.u64 %i, 0;\nmov.u32 %x, %clock;\n"
    "L:\nadd.u64 %a, %o, %i;\nst.local.u32 [%a], %x;\nadd.u64 %i, %i, 4;\n"
    "setp.lt.u64 %p, %i, 16384;\n@%p bra L;\n"
    "and.b32 %x, %x, 16380;\ncvt.u64.u32 %i, %x;\nadd.u64 %a, %o, %i;\nld.local.u32 %x, [%a];\n"
    "st.global.u32 [%c+8], %x;\nret;\n}\n";

struct kernel_node { /* CUDA_KERNEL_NODE_PARAMS_v2 */
    void *function;
    unsigned grid[3], block[3], shared;
    void **values, **extra;
    void *kernel, *context;
};

struct conditional_node { /* CUDA_CONDITIONAL_NODE_PARAMS */
    uint64_t handle;
    int type;
    unsigned size;
    void **graphs;
    void *context;
};

struct node { /* CUgraphNodeParams */
    int type, reserved[3];
    union {
        struct conditional_node conditional;
        long long bytes[29];
    };
    long long more;
};

enum { CONDITIONAL = 13, WHILE = 1, ASSIGN_DEFAULT = 1, LAUNCHES = 4 };

static void add_kernel(void *graph, void *module, const char *name, void **values)
{
    void *node;
    struct kernel_node made = {.grid = {1, 1, 1}, .block = {1, 1, 1}, .values = values};
    MUST("cuModuleGetFunction", (void **, void *, const char *), &made.function, module, name);
    MUST("cuGraphAddKernelNode_v2", (void **, void *, const void *, size_t, const void *), &node, graph,
         NULL, 0, &made);
}

/* How often the body has run in all. */
static unsigned count(pointer counters)
{
    unsigned found[2];
    MUST("cuMemcpyDtoH_v2", (void *, pointer, size_t), found, counters, sizeof(found));
    return found[1];
}

static void launch(void *exec, void *stream)
{
    for (int i = 0; i < LAUNCHES; i++)
        MUST("cuGraphLaunch", (void *, void *), exec, stream);
    MUST("cuStreamSynchronize", (void *), stream);
}

int main(int words, char **word)
{
    void *module, *graph, *exec, *stream, *first, *loop;
    pointer counters;
    uint64_t handle, rounds;
    unsigned turns;

    if (words != 5)
        return 2;
    const double seconds = atof(word[1]);
    turns = (unsigned)atoi(word[2]);
    rounds = strtoull(word[3], NULL, 0);
    open_driver();
    MUST("cuInit", (unsigned), 0);
    void *context = use_device(0);
    MUST("cuModuleLoadData", (void **, const void *), &module, text);
    MUST("cuMemAlloc_v2", (pointer *, size_t), &counters, 12);
    MUST("cuMemsetD8_v2", (pointer, unsigned char, size_t), counters, 0, 12);
    MUST("cuStreamCreate", (void **, unsigned), &stream, 1);
    MUST("cuGraphCreate", (void **, unsigned), &graph, 0);
    MUST("cuGraphConditionalHandleCreate", (uint64_t *, void *, void *, unsigned, unsigned), &handle, graph,
         context, 1, ASSIGN_DEFAULT);

    void *begin_values[] = {&counters}, *body_values[] = {&counters, &handle, &rounds, &turns};
    add_kernel(graph, module, "begin", begin_values);
    size_t one = 1;
    MUST("cuGraphGetNodes", (void *, void **, size_t *), graph, &first, &one);
    struct node made = {.type = CONDITIONAL};
    made.conditional =
        (struct conditional_node){.handle = handle, .type = WHILE, .size = 1, .context = context};
    MUST("cuGraphAddNode", (void **, void *, void *const *, size_t, struct node *), &loop, graph, &first, 1,
         &made);
    void *body = made.conditional.graphs[0];
    add_kernel(body, module, "body", body_values);
    if (strcmp(word[4], "1") == 0)
        add_kernel(body, module, "greedy", begin_values);
    MUST("cuGraphInstantiateWithFlags", (void **, void *, unsigned long long), &exec, graph, 0);

    launch(exec, stream);
    if (count(counters) != LAUNCHES * turns)
        return fprintf(stderr, "the body ran %u times\n", count(counters)), 3;
    if (seconds == 0) {
        printf("done\n");
        fflush(stdout);
        return getchar() != EOF;
    }
    for (double end = now() + 5e8; now() < end;)
        launch(exec, stream);
    const unsigned before = count(counters);
    const double from = now();
    while (now() < from + seconds * 1e9)
        launch(exec, stream);
    const double took = (now() - from) / 1e9;
    printf("%u %.6f\n", count(counters) - before, took);
    return 0;
}
