/* Ways of take_time without kernels: memory is set and copied by the device itself. */
#include "take_time.h"

#include <string.h>

static Address memory[2];
static size_t bytes;
static Handle stream;

static void by_set(void)
{
    CU(cuMemsetD32Async, (Address, unsigned, size_t, Handle), memory[0], 7, bytes / 4, stream);
}

static void by_copy(void)
{
    CU(cuMemcpyDtoDAsync_v2, (Address, Address, size_t, Handle), memory[1], memory[0], bytes, stream);
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

static void prepare(void)
{
    char name[256] = "";
    CU(cuDeviceGetName, (char *, int, int), name, sizeof(name), 0);
    bytes = strstr(name, "(simulated)") ? 1 << 16 : (size_t)512 << 20; /* there it is the host's memory */
    stream = new_stream();
    for (int i = 0; i < 2; i++)
        CU(cuMemAlloc_v2, (Address *, size_t), &memory[i], bytes);
}

static void again_and_again(void (*one)(void))
{
    prepare();
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

static void copying(void)
{
    again_and_again(by_copy);
}

const struct way copy_ways[] = {{"memset", setting, false}, {"device-copy", copying, false}, {0}};

void print_lengths(void)
{
    static void (*const calls[])(void) = {by_set, by_copy};
    prepare();
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        printf("%s %.3f\n", copy_ways[i].name, length_of(calls[i]));
    exit(0);
}
