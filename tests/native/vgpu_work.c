/* Fixed work by launches of every kind, for as long as asked, on a simulated or a real driver. Arguments are NAME=VALUE:
 *
 *   ns=N         GPU time of one kernel                    kind=plain|default|ptsz|ex|coop|multi|graph|spin|memset|copy
 *   batch=N      launches before each synchronisation, 0: none before the end   nodes=N of a graph, grid=N blocks of a kernel
 *   threads=N streams=N   each thread has its own streams  seconds=S    warm=S before that
 *   idle=MS      after so long nothing more is launched
 *   trace=MS     a line each: milliseconds, kernels so far
 *   rounds=N     of a kernel's loop, as printed before
 *
 * `spin` is a kernel that waits for the next one, in another stream. `churn=1` replaces streams all the time, `captures=1`
 * captures graphs in another thread. With `mixed=N` every second kernel takes N times as long. Prints `start` and the rounds, then, for the time after `warm`:
 * kernels, seconds, the longest call of a launch in milliseconds, kernels a second; and kernels and seconds from the beginning. A line on standard input ends it early. */
#include "vgpu_tool.h"

#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STREAMS = 64, THREADS = 64 };

/* `sim_spin_for` takes so many nanoseconds on a simulated GPU, and so many rounds of its loop on a real one. */
static const char text[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry sim_spin_for(.param .u64 rounds)\n{\n"
    ".reg .pred %p; .reg .u64 %n, %i; .reg .u32 %x; .shared .align 4 .u32 s;\n"
    "ld.param.u64 %n, [rounds];\nmov.u64 %i, 0;\nmov.u32 %x, 1;\n"
    "L:\nst.volatile.shared.u32 [s], %x;\nld.volatile.shared.u32 %x, [s];\n"
    "add.u64 %i, %i, 1;\nsetp.lt.u64 %p, %i, %n;\n@%p bra L;\nret;\n}\n"
    ".visible .entry sim_wait_for(.param .u64 word, .param .u32 value)\n{\n"
    ".reg .pred %p; .reg .u64 %w; .reg .u32 %x, %v;\n"
    "ld.param.u64 %w, [word];\nld.param.u32 %v, [value];\n"
    "L:\nld.volatile.global.u32 %x, [%w];\nsetp.ne.u32 %p, %x, %v;\n@%p bra L;\nret;\n}\n"
    ".visible .entry fill_u32(.param .u64 out, .param .u32 value, .param .u64 count)\n{\n"
    ".reg .u64 %w; .reg .u32 %v;\n"
    "ld.param.u64 %w, [out];\nld.param.u32 %v, [value];\nst.volatile.global.u32 [%w], %v;\nret;\n}\n";

static void *library;
static CUfunction function, wait_for, fill;
static CUcontext context;
static CUgraphExec graph;
static CUdeviceptr memory; /* of what is no kernel */
static _Atomic uint64_t done, longest;
static _Atomic bool counting, ending;
static const char *kind = "plain";
static uint64_t work = 1000000, batch = 1, threads = 1, streams = 1, nodes = 1, trace, blocks = 1;
static uint64_t captures, captured, churn, idle, mixed, rounds;
static double seconds = 1, warm = 0.2;

void *entry(const char *name)
{
    void *found = dlsym(library, name);
    if (!found)
        fprintf(stderr, "%s is missing\n", name), exit(3);
    return found;
}

#define CALL(name, types) ((CUresult(*) types)entry(#name))

static void must(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS)
        fprintf(stderr, "%s: %d\n", what, result), exit(4);
}

#define MUST(name, types, ...) must(CALL(name, types)(__VA_ARGS__), #name)

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static CUresult launch(CUstream stream)
{
    static type_cuLaunchKernel plain;
    static _Atomic uint64_t launched;
    uint64_t nth = mixed ? atomic_fetch_add(&launched, 1) : 0;
    uint64_t own = nth % 2 ? mixed * rounds : rounds;
    void *values[] = {&own};
    if (strcmp(kind, "graph") == 0)
        return CU(cuGraphLaunch)(graph, stream);
    if (memory && *kind == 'm')
        return CU(cuMemsetD32Async)(memory, 1, blocks, stream);
    if (memory)
        return CU(cuMemcpyDtoDAsync_v2)(memory + 4 * blocks, memory, 4 * blocks, stream);
    if (strcmp(kind, "ptsz") == 0)
        return CU(cuLaunchKernel_ptsz)(function, blocks, 1, 1, 32, 1, 1, 0, stream, values, NULL);
    if (strcmp(kind, "coop") == 0)
        return CU(cuLaunchCooperativeKernel)(function, blocks, 1, 1, 32, 1, 1, 0, stream, values);
    if (strcmp(kind, "ex") == 0) {
        CUlaunchAttribute attribute = {.id = 2, .value.cooperative = 1};
        CUlaunchConfig config = {SHAPE(blocks, 32), .hStream = stream, .attrs = &attribute, .numAttrs = 1};
        return CU(cuLaunchKernelEx)(&config, function, values, NULL);
    }
    if (strcmp(kind, "multi") == 0) {
        CUDA_LAUNCH_PARAMS one = {
            .function = function, SHAPE(blocks, 32), .hStream = stream, .kernelParams = values};
        return CU(cuLaunchCooperativeKernelMultiDevice)(&one, 1, 0);
    }
    if (!plain)
        plain = CU(cuLaunchKernel);
    return plain(function, blocks, 1, 1, 32, 1, 1, 0, stream, values, NULL);
}

static void make_graph(void)
{
    CUgraph made;
    CUstream stream;
    const char *wanted = kind;
    kind = "plain";
    MUST(cuStreamCreate, (CUstream *, unsigned int), &stream, 1);
    MUST(cuStreamBeginCapture_v2, (CUstream, int), stream, 2);
    for (uint64_t i = 0; i < nodes; i++)
        must(launch(stream), "captured launch");
    MUST(cuStreamEndCapture, (CUstream, CUgraph *), stream, &made);
    MUST(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long), &graph, made, 0);
    kind = wanted;
}

/* Captures in the mode in which other threads' calls count too: none of the shim's may break it. */
static void *capture_on(void *argument)
{
    CUstream stream;
    void *values[] = {&rounds};
    (void)argument;
    MUST(cuCtxSetCurrent, (CUcontext), context);
    MUST(cuStreamCreate, (CUstream *, unsigned int), &stream, 1);
    while (!atomic_load(&ending)) {
        CUgraph made;
        MUST(cuStreamBeginCapture_v2, (CUstream, int), stream, 0);
        for (int i = 0; i < 20; i++)
            must(CU(cuLaunchKernel)(function, 1, 1, 1, 32, 1, 1, 0, stream, values, NULL),
                 "captured launch");
        MUST(cuStreamEndCapture, (CUstream, CUgraph *), stream, &made);
        must(CU(cuGraphDestroy)(made), "cuGraphDestroy");
        captured++;
    }
    return NULL;
}

static void note_longest(double from)
{
    uint64_t took = (uint64_t)((now() - from) * 1e9), seen = longest;
    while (atomic_load(&counting) && took > seen && !atomic_compare_exchange_weak(&longest, &seen, took))
        ;
}

/* Two launches: one that waits on the device until the other has run. */
static void launch_pair(CUstream first, CUstream second, CUdeviceptr word, uint32_t value)
{
    uint64_t count = 1;
    void *waits[] = {&word, &value}, *fills[] = {&word, &value, &count};
    double from = now();
    must(CU(cuLaunchKernel)(wait_for, 1, 1, 1, 1, 1, 1, 0, first, waits, NULL), "launch that waits");
    must(CU(cuLaunchKernel)(fill, 1, 1, 1, 1, 1, 1, 0, second, fills, NULL), "launch that is waited for");
    note_longest(from);
}

static void renew(CUstream *stream)
{
    must(CU(cuStreamDestroy_v2)(*stream), "cuStreamDestroy");
    MUST(cuStreamCreate, (CUstream *, unsigned int), stream, 1);
}

static void *work_on(void *argument)
{
    CUstream own[STREAMS];
    CUresult (*synchronize)(CUstream) = CU(cuStreamSynchronize);
    (void)argument;
    MUST(cuCtxSetCurrent, (CUcontext), context);
    for (uint64_t i = 0; i < streams; i++)
        MUST(cuStreamCreate, (CUstream *, unsigned int), &own[i], 1);
    CUdeviceptr word = 0;
    if (strcmp(kind, "spin") == 0)
        must(CU(cuMemAlloc_v2)(&word, 4), "cuMemAlloc");
    for (uint64_t i = 0; !atomic_load(&ending); i++) {
        if (strcmp(kind, "spin") == 0) {
            launch_pair(own[0], own[1], word, (uint32_t)i + 1);
            must(synchronize(own[0]), "synchronize");
            atomic_fetch_add(&done, 1);
            continue;
        }
        if (churn && i % 16 == 0)
            renew(&own[i / 16 % streams]);
        CUstream stream = *kind == 'd' || strcmp(kind, "ptsz") == 0 ? NULL : own[i % streams];
        double from = now();
        must(launch(stream), "launch");
        note_longest(from);
        atomic_fetch_add(&done, strcmp(kind, "graph") == 0 ? nodes : 1);
        if (!batch || i % batch != batch - 1)
            continue;
        must(strcmp(kind, "ptsz") == 0 ? CU(cuStreamSynchronize_ptsz)(NULL) : synchronize(stream), "wait");
    }
    return NULL;
}

/* Rounds a nanosecond on a real GPU: of a simulated one the argument is the time. */
static void calibrate(void)
{
    char name[256] = "";
    CUstream stream;
    void *events[2];
    float took = 0;
    const uint64_t wanted = work;
    rounds = 200000;
    MUST(cuDeviceGetName, (char *, int, CUdevice), name, sizeof(name), 0);
    if (!strstr(name, "(simulated)")) {
        MUST(cuStreamCreate, (CUstream *, unsigned int), &stream, 1);
        for (int i = 0; i < 2; i++)
            MUST(cuEventCreate, (void **, unsigned int), &events[i], 0);
        for (int i = 0; i < 3; i++) {
            kind = "plain";
            MUST(cuEventRecord, (void *, CUstream), events[0], stream);
            must(launch(stream), "launch");
            MUST(cuEventRecord, (void *, CUstream), events[1], stream);
            MUST(cuStreamSynchronize, (CUstream), stream);
        }
        MUST(cuEventElapsedTime, (float *, void *, void *), &took, events[0], events[1]);
        rounds = (uint64_t)((double)wanted * 200000 / ((double)took * 1e6 - 2500));
    } else {
        rounds = wanted;
    }
}

static void read_arguments(char **words)
{
    for (; *words; words++) {
        char *value = strchr(*words, '=');
        if (!value)
            fprintf(stderr, "%s: NAME=VALUE\n", *words), exit(2);
        *value++ = '\0';
        const struct {
            const char *name;
            uint64_t *to;
        } numbers[] = {{"ns", &work},         {"batch", &batch},   {"threads", &threads},
                       {"streams", &streams}, {"nodes", &nodes},   {"trace", &trace},
                       {"grid", &blocks},     {"rounds", &rounds}, {"captures", &captures},
                       {"churn", &churn},     {"idle", &idle},     {"mixed", &mixed}};
        for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
            if (strcmp(*words, numbers[i].name) == 0)
                *numbers[i].to = number(value);
        if (strcmp(*words, "seconds") == 0)
            seconds = atof(value);
        if (strcmp(*words, "warm") == 0)
            warm = atof(value);
        if (strcmp(*words, "kind") == 0)
            kind = value;
    }
}

uint64_t number(const char *value)
{
    return strtoull(value, NULL, 0);
}

/* False: it is to end. */
static bool wait_until(double end)
{
    struct pollfd input = {.fd = 0, .events = POLLIN};
    for (double at = now(); at < end; at = now()) {
        double step = trace ? (double)trace : 1e3;
        int ms = (int)((end - at) * 1e3 < step ? (end - at) * 1e3 + 1 : step);
        char byte;
        if (poll(&input, 1, ms) > 0) {
            if (read(0, &byte, 1) > 0)
                return false;
            input.fd = -1; /* there is nobody to say so */
        }
        if (trace && atomic_load(&counting))
            printf("%.3f %llu\n", now() * 1e3, (unsigned long long)done);
    }
    return true;
}

int main(int count, char **words)
{
    pthread_t made[THREADS + 1];
    CUmodule module;
    (void)count;
    read_arguments(words + 1);
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        return fprintf(stderr, "%s\n", dlerror()), 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *wanted = kind;
    MUST(cuInit, (unsigned int), 0);
    MUST(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice), &context, 0);
    MUST(cuCtxSetCurrent, (CUcontext), context);
    MUST(cuModuleLoadData, (CUmodule *, const void *), &module, text);
    MUST(cuModuleGetFunction, (CUfunction *, CUmodule, const char *), &function, module, "sim_spin_for");
    MUST(cuModuleGetFunction, (CUfunction *, CUmodule, const char *), &wait_for, module, "sim_wait_for");
    MUST(cuModuleGetFunction, (CUfunction *, CUmodule, const char *), &fill, module, "fill_u32");
    if (!rounds)
        calibrate();
    kind = wanted;
    if (strcmp(kind, "graph") == 0)
        make_graph();
    if (strcmp(kind, "memset") == 0 || strcmp(kind, "copy") == 0)
        must(CU(cuMemAlloc_v2)(&memory, 8 * blocks), "cuMemAlloc");
    double begin = now();
    for (uint64_t i = 0; i < threads; i++)
        pthread_create(&made[i], NULL, work_on, NULL);
    if (captures)
        pthread_create(&made[threads], NULL, capture_on, NULL);
    bool more = wait_until(now() + warm);
    uint64_t before = done;
    double from = now();
    printf("start %llu\n", (unsigned long long)rounds);
    atomic_store(&counting, true);
    if (more && idle) {
        more = wait_until(from + (double)idle / 1e3);
        atomic_store(&ending, true);
    }
    if (more)
        wait_until(from + seconds);
    double end = now(), took = end - from;
    uint64_t all = done, kernels = all - before;
    atomic_store(&ending, true);
    if (captures && !captured)
        return fprintf(stderr, "nothing was captured\n"), 5;
    printf("%llu %.6f %.3f %.3f %llu %.6f\n", (unsigned long long)kernels, took, (double)longest / 1e6,
           (double)kernels / took, (unsigned long long)all, end - begin);
    fflush(stdout);
    _exit(0);
}
