/* Ways of take_time without kernels: memory is set and copied by the device itself. */
#include "take_time.h"

#include <string.h>

struct set_node { /* CUDA_MEMSET_NODE_PARAMS */
    Address to;
    size_t pitch;
    unsigned value, element;
    size_t width, height;
};

static Address memory[2];
static size_t bytes;
static Handle stream, instance;

static void by_set(void)
{
    CU(cuMemsetD32Async, (Address, unsigned, size_t, Handle), memory[0], 7, bytes / 4, stream);
}

static void by_rows(void)
{
    CU(cuMemsetD2D8Async, (Address, size_t, unsigned char, size_t, size_t, Handle), memory[0], 1 << 16, 7,
       1 << 16, bytes >> 16, stream);
}

static void by_copy(void)
{
    CU(cuMemcpyDtoDAsync_v2, (Address, Address, size_t, Handle), memory[1], memory[0], bytes, stream);
}

/* Any two addresses: the arguments do not say that both are the device's. */
static void by_any_copy(void)
{
    CU(cuMemcpyAsync, (Address, Address, size_t, Handle), memory[1], memory[0], bytes, stream);
}

static void by_graph(void)
{
    CU(cuGraphLaunch, (Handle, Handle), instance, stream);
}

static void make_graph(void)
{
    Handle graph, node, last = NULL;
    struct set_node set = {memory[0], 0, 7, 4, bytes / 4, 1};
    CU(cuGraphCreate, (Handle *, unsigned), &graph, 0);
    for (int i = 0; i < 4; i++, last = node)
        CU(cuGraphAddMemsetNode, (Handle *, Handle, const Handle *, size_t, const void *, Handle), &node,
           graph, &last, last != NULL, &set, context);
    CU(cuGraphInstantiateWithFlags, (Handle *, Handle, unsigned long long), &instance, graph, 0);
}

/* How long one takes: the shortest of some, each after a pause in which a cap has brought credit. */
static double length_of(void (*one)(void))
{
    double least = 1e9;
    for (int i = 0; i < 8; i++) {
        pause_for(20000);
        double from = now();
        one();
        wait_for(stream);
        double took = (now() - from) * 1e6;
        least = took < least ? took : least;
    }
    return least;
}

static void again_and_again(void (*one)(void))
{
    char name[256] = "";
    CU(cuDeviceGetName, (char *, int, int), name, sizeof(name), 0);
    bytes = strstr(name, "(simulated)") ? 1 << 16 : (size_t)512 << 20; /* there it is the host's memory */
    stream = new_stream();
    for (int i = 0; i < 2; i++)
        CU(cuMemAlloc_v2, (Address *, size_t), &memory[i], bytes);
    if (one == by_graph)
        make_graph();
    double us = length_of(one);
    for (int i = 0; more(); i++) {
        one();
        used(us);
        if (i % 16 == 15)
            wait_for(stream);
    }
}

static void setting(void)
{
    again_and_again(by_set);
}

static void setting_rows(void)
{
    again_and_again(by_rows);
}

static void copying(void)
{
    again_and_again(by_copy);
}

static void copying_any(void)
{
    again_and_again(by_any_copy);
}

static void setting_by_graph(void)
{
    again_and_again(by_graph);
}

const struct way copy_ways[] = {{"memset", setting, false},
                                {"memset-rows", setting_rows, false},
                                {"device-copy", copying, false},
                                {"any-copy", copying_any, false},
                                {"memset-graph", setting_by_graph, false},
                                {0}};
