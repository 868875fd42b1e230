/* A graph with a loop on the device: a conditional node whose body runs as often as a kernel in it says (CUDA 12.4). It
 * is launched for so many seconds, and prints how often the body has run and how long that took. Usage: vgpu_while
 * SECONDS TURNS ROUNDS [local], where a launch makes TURNS of the body and each has ROUNDS of a kernel's loop, on a
 * simulated GPU nanoseconds; with `local` the body needs 16 KiB of local memory a thread. With SECONDS 0: a few
 * launches, `done`, and it waits for the end of its input.
 *
 * The function of the device runtime that sets a condition is one of those that the driver itself links, as vprintf. */
#include "vgpu_driver.h"

#include <stdint.h>

static const char text[] =
    ".version 8.0\n.target sm_70\n.address_size 64\n"
    ".extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);\n"
    ".visible .entry fill_u32(.param .u64 out, .param .u32 value, .param .u64 count)\n{\n"
    ".reg .u64 %w; .reg .u32 %v;\n"
    "ld.param.u64 %w, [out];\nld.param.u32 %v, [value];\nst.volatile.global.u32 [%w], %v;\nret;\n}\n"
    ".visible .entry sim_spin_for(.param .u64 rounds)\n{\n"
    ".reg .pred %p; .reg .u64 %n, %i; .reg .u32 %x; .shared .align 4 .u32 s;\n"
    "ld.param.u64 %n, [rounds];\nmov.u64 %i, 0;\nmov.u32 %x, 1;\n"
    "L:\nst.volatile.shared.u32 [s], %x;\nld.volatile.shared.u32 %x, [s];\n"
    "add.u64 %i, %i, 1;\nsetp.lt.u64 %p, %i, %n;\n@%p bra L;\nret;\n}\n"
    ".visible .entry sim_count_down(.param .u64 word, .param .u64 handle)\n{\n"
    ".reg .pred %p; .reg .u64 %w, %h; .reg .u32 %x, %v;\n"
    ".param .b64 out_handle; .param .b32 out_value;\n"
    "ld.param.u64 %w, [word];\nld.param.u64 %h, [handle];\n"
    "ld.volatile.global.u32 %x, [%w];\nsub.u32 %x, %x, 1;\nst.volatile.global.u32 [%w], %x;\n"
    "setp.ne.u32 %p, %x, 0;\nselp.u32 %v, 1, 0, %p;\n"
    "st.param.b64 [out_handle], %h;\nst.param.b32 [out_value], %v;\n"
    "call.uni cudaGraphSetConditional, (out_handle, out_value);\nret;\n}\n"
    ".visible .entry greedy(.param .u64 word)\n{\n"
    ".local .align 8 .b8 own[16384]; .reg .u64 %w, %o, %a, %i; .reg .u32 %x; .reg .pred %p;\n"
    "ld.param.u64 %w, [word];\nmov.u64 %o, own;\nmov.u64 %i, 0;\nmov.u32 %x, %clock;\n"
    "L:\nadd.u64 %a, %o, %i;\nst.local.u32 [%a], %x;\nadd.u64 %i, %i, 4;\n"
    "setp.lt.u64 %p, %i, 16384;\n@%p bra L;\n"
    "and.b32 %x, %x, 16380;\ncvt.u64.u32 %i, %x;\nadd.u64 %a, %o, %i;\nld.local.u32 %x, [%a];\n"
    "st.global.u32 [%w+4], %x;\nret;\n}\n";

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

enum { CONDITIONAL = 13, WHILE = 1, ASSIGN_DEFAULT = 1, LAUNCHES = 16 };

static void *add_kernel(void *graph, void *after, void *module, const char *name, void **values)
{
    void *node;
    struct kernel_node made = {.grid = {1, 1, 1}, .block = {1, 1, 1}, .values = values};
    MUST("cuModuleGetFunction", (void **, void *, const char *), &made.function, module, name);
    MUST("cuGraphAddKernelNode_v2", (void **, void *, void *const *, size_t, const void *), &node, graph,
         &after, after != NULL, &made);
    return node;
}

/* Some times, then wait: the pause is short beside what they take. */
static void launch(void *exec, void *stream)
{
    for (int i = 0; i < LAUNCHES; i++)
        MUST("cuGraphLaunch", (void *, void *), exec, stream);
    MUST("cuStreamSynchronize", (void *), stream);
}

int main(int words, char **word)
{
    void *module, *graph, *exec, *stream, *loop;
    pointer counter;
    uint64_t handle, one = 1;
    uint32_t left = 1;

    if (words < 4)
        return 2;
    const double seconds = atof(word[1]);
    uint32_t turns = (uint32_t)atoi(word[2]);
    uint64_t rounds = strtoull(word[3], NULL, 0);
    open_driver();
    MUST("cuInit", (unsigned), 0);
    void *context = use_device(0);
    MUST("cuModuleLoadData", (void **, const void *), &module, text);
    MUST("cuMemAlloc_v2", (pointer *, size_t), &counter, 8);
    MUST("cuStreamCreate", (void **, unsigned), &stream, 1);
    MUST("cuGraphCreate", (void **, unsigned), &graph, 0);
    MUST("cuGraphConditionalHandleCreate", (uint64_t *, void *, void *, unsigned, unsigned), &handle, graph,
         context, 1, ASSIGN_DEFAULT);

    void *fills[] = {&counter, &turns, &one}, *spins[] = {&rounds}, *counts[] = {&counter, &handle};
    void *first = add_kernel(graph, NULL, module, "fill_u32", fills);
    struct node made = {.type = CONDITIONAL};
    made.conditional =
        (struct conditional_node){.handle = handle, .type = WHILE, .size = 1, .context = context};
    MUST("cuGraphAddNode", (void **, void *, void *const *, size_t, struct node *), &loop, graph, &first, 1,
         &made);
    void *body = made.conditional.graphs[0];
    void *last = add_kernel(body, NULL, module, "sim_spin_for", spins);
    if (words > 4)
        last = add_kernel(body, last, module, "greedy", counts);
    add_kernel(body, last, module, "sim_count_down", counts);
    MUST("cuGraphInstantiateWithFlags", (void **, void *, unsigned long long), &exec, graph, 0);

    launch(exec, stream);
    MUST("cuMemcpyDtoH_v2", (void *, pointer, size_t), &left, counter, sizeof(left));
    if (left != 0)
        return fprintf(stderr, "%u turns are left\n", left), 3;
    if (seconds == 0) {
        printf("done\n");
        fflush(stdout);
        return getchar() != EOF;
    }
    for (double end = now() + 5e8; now() < end;)
        launch(exec, stream);
    uint64_t launches = 0;
    const double from = now();
    for (; now() < from + seconds * 1e9; launches += LAUNCHES)
        launch(exec, stream);
    printf("%llu %.6f\n", (unsigned long long)(launches * turns), (now() - from) / 1e9);
    return 0;
}
