/* A libcuda on which a kernel of nvc-spin takes a nanosecond a round, but for a machine that is busy: the first BUSY
 * series of kernels with twice the work seem to take no longer than those with half of it. With WAIT, kernels wait for
 * other programs, the longer ones for less time. In the series TERM it sends its process SIGTERM. At the end it prints the rounds of the last kernel. */
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))
#define DOES_NOTHING(name)                                                                                  \
    EXPORT int name(void)                                                                                   \
    {                                                                                                       \
        return 0;                                                                                           \
    }
DOES_NOTHING(cuInit)
DOES_NOTHING(cuDeviceGet)
DOES_NOTHING(cuDeviceGetName)
DOES_NOTHING(cuDevicePrimaryCtxRetain)
DOES_NOTHING(cuCtxSetCurrent)
DOES_NOTHING(cuMemAlloc_v2)
DOES_NOTHING(cuModuleLoadData)
DOES_NOTHING(cuModuleGetFunction)
DOES_NOTHING(cuStreamCreate)
DOES_NOTHING(cuStreamSynchronize)
DOES_NOTHING(cuEventCreate)
DOES_NOTHING(cuEventRecord)
DOES_NOTHING(cuEventSynchronize)
DOES_NOTHING(cuGetErrorName)
DOES_NOTHING(cuGetErrorString)

static uint64_t rounds, most;
static int series;

static int number(const char *name)
{
    const char *text = getenv(name);
    return text ? atoi(text) : -1;
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    *value = attribute - attribute + device + 1;
    return 0;
}

EXPORT int cuMemGetInfo_v2(size_t *unused, size_t *all)
{
    *unused = *all = 1 << 30;
    return 0;
}

EXPORT int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned width,
                          unsigned height, unsigned depth, unsigned shared, void *stream, void **values,
                          void **more)
{
    uint64_t now = *(uint64_t *)values[0];
    (void)function, (void)x, (void)y, (void)z, (void)width, (void)height, (void)depth, (void)shared;
    (void)stream, (void)more;
    if (now == most && rounds < most && series++ == number("TERM"))
        raise(SIGTERM);
    most = now > most ? now : most;
    rounds = now;
    return 0;
}

EXPORT int cuEventElapsedTime(float *ms, void *first, void *second)
{
    (void)first, (void)second;
    *ms = (float)(rounds == most && most > 1000000 && series < number("BUSY") ? rounds / 2 : rounds) / 1e6f;
    if (number("WAIT") > 0)
        *ms += (float)number("WAIT") * 1e6f / (float)rounds;
    return 0;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device)
{
    printf("rounds %llu of device %d\n", (unsigned long long)rounds, device);
    return 0;
}
