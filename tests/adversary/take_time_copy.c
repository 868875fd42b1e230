/* Ways of take_time without kernels: memory is set and copied by the device itself. */
#include "take_time.h"

#include <string.h>

struct set_node { /* CUDA_MEMSET_NODE_PARAMS */
    Address to;
    size_t pitch;
    unsigned value, element;
    size_t width, height;
};

enum { SETS = 4 }; /* of a graph */

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
    for (int i = 0; i < SETS; i++, last = node)
        CU(cuGraphAddMemsetNode, (Handle *, Handle, const Handle *, size_t, const void *, Handle), &node,
           graph, &last, last != NULL, &set, context);
    CU(cuGraphInstantiateWithFlags, (Handle *, Handle, unsigned long long), &instance, graph, 0);
}

enum { FEW = 8, MANY = 72, ROUNDS = 6 };

/* The least time of so many in a queue, microseconds, between two events. */
static double length_of_queue(void (*one)(void), int count)
{
    double least = 1e9;
    Handle events[2];
    for (int i = 0; i < 2; i++)
        CU(cuEventCreate, (Handle *, unsigned), &events[i], 0);
    for (int i = 0; i < ROUNDS; i++) {
        float ms;
        CU(cuEventRecord, (Handle, Handle), events[0], stream);
        for (int n = 0; n < count; n++)
            one();
        CU(cuEventRecord, (Handle, Handle), events[1], stream);
        wait_for(stream);
        CU(cuEventElapsedTime, (float *, Handle, Handle), &ms, events[0], events[1]);
        least = (double)ms * 1e3 < least ? (double)ms * 1e3 : least;
    }
    return least;
}

/* How long a call takes in a full queue, microseconds. Under a cap, or beside others, what they take is counted too: so
 * this is of use without the shim alone. */
static double length_of(void (*one)(void))
{
    return (length_of_queue(one, MANY) - length_of_queue(one, FEW)) / (MANY - FEW);
}

static void prepare(bool graph)
{
    char name[256] = "";
    CU(cuDeviceGetName, (char *, int, int), name, sizeof(name), 0);
    bytes = strstr(name, "(simulated)") ? 1 << 16 : (size_t)512 << 20; /* there it is the host's memory */
    stream = new_stream();
    for (int i = 0; i < 2; i++)
        CU(cuMemAlloc_v2, (Address *, size_t), &memory[i], bytes);
    if (graph)
        make_graph();
}

static void again_and_again(void (*one)(void))
{
    prepare(one == by_graph);
    for (int i = 0; more(); i++) {
        one();
        used(us_a_call);
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

void print_lengths(void)
{
    static void (*const calls[])(void) = {by_set, by_rows, by_copy, by_any_copy, by_graph};
    prepare(true);
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        printf("%s %.3f\n", copy_ways[i].name, length_of(calls[i]));
    exit(0);
}
