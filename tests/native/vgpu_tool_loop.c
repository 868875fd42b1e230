/* The commands of vgpu_tool for kernels that only a simulated driver has: of some length, and of graphs with loops. */
#include "vgpu_tool.h"

#include <stdio.h>
#include <string.h>

enum { CONDITIONAL = 13, WHILE = 1, RESET_AT_LAUNCH = 1 };

static const char text[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry sim_spin_for(.param .u64 ns)\n{\nret;\n}\n"
    ".visible .entry sim_count_down(.param .u64 word, .param .u64 handle)\n{\nret;\n}\n"
    ".visible .entry fill_u32(.param .u64 out, .param .u32 value, .param .u64 count)\n"
    "{\nret;\n}\n";

static CUresult add_kernel(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, CUmodule module,
                           const char *name, void **values)
{
    struct {
        CUfunction function;
        unsigned int grid[3], block[3], shared;
        void **values, **extra, *kernel, *context;
    } node = {.grid = {1, 1, 1}, .block = {1, 1, 1}, .values = values};
    CUresult result = CU(cuModuleGetFunction)(&node.function, module, name);
    return result ? result : CU(cuGraphAddKernelNode_v2)(out, graph, before, before != NULL, &node);
}

/* `loop g b N NS`: a graph g whose body b runs N times, each NS nanoseconds long. */
CUresult loops(char **word)
{
    if (!IS("loop"))
        return -1;
    CUmodule module = NULL;
    CUgraph graph = NULL, body;
    CUgraphNode first = NULL, choice, spin, last;
    CUdeviceptr at = 0;
    uint64_t handle = 0, one = 1, ns = number(word[4]);
    uint32_t times = (uint32_t)number(word[3]);
    CUresult result = CU(cuModuleLoadData)(&module, text);
    if (!result)
        result = CU(cuMemAlloc_v2)(&at, 4);
    if (!result)
        result = CU(cuGraphCreate)(&graph, 0);
    if (!result)
        result = CU(cuGraphConditionalHandleCreate)(&handle, graph, NULL, 1, RESET_AT_LAUNCH);
    if (!result)
        result = add_kernel(&first, graph, NULL, module, "fill_u32", (void *[]){&at, &times, &one});
    CUgraphNodeParams params = {.type = CONDITIONAL};
    params.reserved1[0] = (long long)handle;
    params.reserved1[1] = WHILE | 1LL << 32; /* and one body */
    if (!result)
        result = CU(cuGraphAddNode)(&choice, graph, &first, 1, &params);
    if (result)
        return result;
    body = *(CUgraph *)(intptr_t)params.reserved1[2];
    result = add_kernel(&spin, body, NULL, module, "sim_spin_for", (void *[]){&ns});
    if (!result)
        result = add_kernel(&last, body, &spin, module, "sim_count_down", (void *[]){&at, &handle});
    *kept_object(word[1]) = graph;
    *kept_object(word[2]) = body;
    return result;
}

static CUresult spin(char **word)
{
    static const unsigned char image[64] = {0x7f, 'E', 'L', 'F'}; /* no text, so it may have any kernel */
    static CUmodule module;
    CUfunction function;
    CUresult result = module ? 0 : CU(cuModuleLoadData)(&module, image);
    result = result ? result : CU(cuModuleGetFunction)(&function, module, word[1]);
    for (uint64_t i = 0; !result && i < number(word[2]); i++)
        result = CU(cuLaunchKernel)(function, 100000, 1, 1, 256, 1, 1, 0, NULL, NULL, NULL);
    return result;
}

/* `spin NAME COUNT` launches kernels that fill the GPU; `time NAME COUNT` says the milliseconds that they take, by events.
 * `write a WORD` and `read a` are of memory. */
CUresult spins(char **word, char *more)
{
    CUevent from, to;
    float ms = 0;
    uint32_t value = word[1] && word[2] ? (uint32_t)number(word[2]) : 0;
    CUresult result;
    if (IS("spin"))
        return spin(word);
    if (IS("write"))
        return CU(cuMemcpyHtoD_v2)(*kept_number(word[1]), &value, sizeof(value));
    if (IS("read")) {
        result = CU(cuMemcpyDtoH_v2)(&value, *kept_number(word[1]), sizeof(value));
        sprintf(more, " %u", value);
        return result;
    }
    if (!IS("time"))
        return -1;
    result = CU(cuEventCreate)(&from, 0) || CU(cuEventCreate)(&to, 0) || CU(cuEventRecord)(from, NULL);
    result = result ? result : spin(word);
    result = result ? result : CU(cuEventRecord)(to, NULL);
    result = result ? result : CU(cuEventSynchronize)(to);
    result = result ? result : CU(cuEventElapsedTime)(&ms, from, to);
    sprintf(more, " %.3f", (double)ms);
    return result;
}
