/* Steps as tenants of a GPU do them, on a simulated or a real driver: how long each took. Arguments are NAME=VALUE:
 *
 *   kind=decode   a step is a CUDA graph of short kernels, which the host waits for
 *   kind=eager    the same kernels, launched one by one
 *   kind=train    a step is a few longer kernels that fill the GPU; the host stays AHEAD steps ahead of it
 *   us=N          microseconds of a step, alone        layers=N    each writes a part of the memory and computes
 *   kernels=N     of a layer                           memory=MIB  that a step writes
 *   rounds=N      of a kernel's loop, as printed before; else it is found by the device's clock
 *
 * Prints `ready PID ROUNDS`. A line `FROM UNTIL` (CLOCK_MONOTONIC, ns) begins the work. At UNTIL it prints `done STEPS`,
 * for those that ended between the two moments, and `took` with the microseconds of each, and ends with 0. A call of the
 * driver that fails prints `error NAME CODE`, and it ends with 4. Without a line it ends with 0. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    AHEAD = 4,
    MOST_STEPS = 1 << 20,
    MULTIPROCESSOR_COUNT = 16,
    DECODE_THREADS = 384,
    TRAIN_THREADS = 1024
};
typedef uint64_t address; /* on the device */

/* On a simulated GPU `sim_spin_for` takes so many nanoseconds. On a real one it makes so many rounds: chains of
 * multiplications and additions, so that one of DECODE_THREADS for each multiprocessor leaves it a part of its time, and
 * one of TRAIN_THREADS none. `fill_u32` writes memory as fast as that goes. */
static const char text[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry sim_spin_for(.param .u64 rounds)\n{\n"
    ".reg .pred %p; .reg .u64 %n, %i; .reg .f32 %a, %b; .shared .align 4 .f32 s;\n"
    "ld.param.u64 %n, [rounds];\nmov.u64 %i, 0;\ncvt.rn.f32.u64 %a, %n;\nmov.f32 %b, 0f3F7FBE77;\n"
    "L:\n"
    "fma.rn.f32 %a, %a, %b, %b;\nfma.rn.f32 %a, %a, %b, %b;\nfma.rn.f32 %a, %a, %b, %b;\n"
    "fma.rn.f32 %a, %a, %b, %b;\nfma.rn.f32 %a, %a, %b, %b;\nfma.rn.f32 %a, %a, %b, %b;\n"
    "fma.rn.f32 %a, %a, %b, %b;\nfma.rn.f32 %a, %a, %b, %b;\n"
    "add.u64 %i, %i, 1;\nsetp.lt.u64 %p, %i, %n;\n@%p bra L;\n"
    "setp.lt.f32 %p, %a, 0f00000000;\n@%p st.volatile.shared.f32 [s], %a;\nret;\n}\n" /* never: it is positive */
    ".visible .entry fill_u32(.param .u64 out, .param .u32 value, .param .u64 count)\n{\n"
    ".reg .pred %p; .reg .u64 %o, %w, %n, %i, %s; .reg .u32 %v, %x, %y, %z;\n"
    "ld.param.u64 %o, [out];\nld.param.u32 %v, [value];\nld.param.u64 %n, [count];\n"
    "mov.u32 %x, %ctaid.x;\nmov.u32 %y, %ntid.x;\nmov.u32 %z, %tid.x;\n"
    "mad.lo.u32 %z, %x, %y, %z;\ncvt.u64.u32 %i, %z;\n"
    "mov.u32 %x, %nctaid.x;\nmul.lo.u32 %x, %x, %y;\ncvt.u64.u32 %s, %x;\n"
    "setp.ge.u64 %p, %i, %n;\n@%p bra E;\n"
    "F:\nshl.b64 %w, %i, 2;\nadd.u64 %w, %w, %o;\nst.global.u32 [%w], %v;\n"
    "add.u64 %i, %i, %s;\nsetp.lt.u64 %p, %i, %n;\n@%p bra F;\n"
    "E:\nret;\n}\n";

static void *library, *compute, *fill, *stream, *graph, *events[AHEAD];
static address memory;
static uint64_t step_us = 2000, layers = 24, kernels = 7, mebibytes = 768, rounds;
static int processors;
static const char *kind = "decode";
static float took[MOST_STEPS]; /* microseconds */
static size_t steps;

static uint64_t now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000 + (uint64_t)at.tv_nsec;
}

static void *entry(const char *name)
{
    void *found = dlsym(library, name);
    if (!found)
        fprintf(stderr, "%s is missing\n", name), exit(3);
    return found;
}

static void must(int result, const char *what)
{
    if (result == 0)
        return;
    printf("error %s %d\n", what, result);
    fflush(stdout);
    _exit(4); /* not by the driver's own ends, which may wait */
}

#define MUST(name, types, ...)                                                                              \
    do {                                                                                                    \
        static int(*found) types;                                                                           \
        if (!found)                                                                                         \
            found = (int(*) types)entry(#name);                                                             \
        must(found(__VA_ARGS__), #name);                                                                    \
    } while (0)

static void launch(void *function, int blocks, int threads, void **values)
{
    MUST(cuLaunchKernel,
         (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
          void **),
         function, (unsigned)blocks, 1, 1, (unsigned)threads, 1, 1, 0, stream, values, NULL);
}

static bool trains(void)
{
    return strcmp(kind, "train") == 0;
}

static void launch_step(void)
{
    uint64_t words = (mebibytes << 18) / layers;
    uint32_t value = 1;
    for (uint64_t layer = 0; layer < layers; layer++) {
        address at = memory + 4 * words * layer;
        void *filled[] = {&at, &value, &words}, *computed[] = {&rounds};
        launch(fill, 8 * processors, 256, filled);
        for (uint64_t i = 0; i < kernels; i++)
            launch(compute, trains() ? 2 * processors : processors,
                   trains() ? TRAIN_THREADS : DECODE_THREADS, computed);
    }
}

static void synchronize(void)
{
    MUST(cuStreamSynchronize, (void *), stream);
}

static void make_graph(void)
{
    void *made;
    MUST(cuStreamBeginCapture_v2, (void *, int), stream, 2);
    launch_step();
    MUST(cuStreamEndCapture, (void *, void **), stream, &made);
    MUST(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long), &graph, made, 0);
    MUST(cuGraphDestroy, (void *), made);
}

static void begin_step(void)
{
    if (graph)
        MUST(cuGraphLaunch, (void *, void *), graph, stream);
    else
        launch_step();
}

/* Nanoseconds of a step, the least of three, by the device's clock. */
static double measure(void)
{
    double least = 0;
    if (strcmp(kind, "decode") == 0)
        make_graph();
    for (int i = 0; i < 4; i++) { /* the first is for warmth */
        float ms = 0;
        MUST(cuEventRecord, (void *, void *), events[0], stream);
        begin_step();
        MUST(cuEventRecord, (void *, void *), events[1], stream);
        synchronize();
        MUST(cuEventElapsedTime, (float *, void *, void *), &ms, events[0], events[1]);
        if (i && (least == 0 || ms * 1e6 < least))
            least = ms * 1e6;
    }
    if (graph)
        MUST(cuGraphExecDestroy, (void *), graph);
    graph = NULL;
    return least;
}

static void calibrate(bool simulated)
{
    const uint64_t count = layers * kernels;
    double wanted = (double)step_us * 1000;
    if (simulated) {
        rounds = (uint64_t)(wanted / (double)count);
        return;
    }
    rounds = 20;
    double few = measure();
    rounds = 500;
    double many = measure(), each = (many - few) / 480;
    rounds = each > 0 && wanted > few ? 20 + (uint64_t)((wanted - few) / each) : 20;
}

static void finish_step(uint64_t from, uint64_t until, uint64_t start, uint64_t end)
{
    if (end >= from && end < until && steps < MOST_STEPS)
        took[steps++] = (float)(end - start) / 1000;
}

/* The host waits for each. */
static void wait_for_each(uint64_t from, uint64_t until)
{
    for (uint64_t start = now(); start < until;) {
        begin_step();
        synchronize();
        uint64_t end = now();
        finish_step(from, until, start, end);
        start = end;
    }
}

/* The host is ahead; a step's time is that between the ends of two. */
static void stay_ahead(uint64_t from, uint64_t until)
{
    uint64_t last = now();
    for (uint64_t i = 0; now() < until; i++) {
        void *event = events[i % AHEAD];
        if (i >= AHEAD) {
            MUST(cuEventSynchronize, (void *), event);
            uint64_t end = now();
            finish_step(from, until, last, end);
            last = end;
        }
        begin_step();
        MUST(cuEventRecord, (void *, void *), event, stream);
    }
    synchronize();
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
        } numbers[] = {{"us", &step_us},
                       {"layers", &layers},
                       {"kernels", &kernels},
                       {"memory", &mebibytes},
                       {"rounds", &rounds}};
        bool known = false;
        for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
            if (strcmp(*words, numbers[i].name) == 0)
                *numbers[i].to = strtoull(value, NULL, 10), known = true;
        if (strcmp(*words, "kind") == 0)
            kind = value;
        else if (!known)
            fprintf(stderr, "%s: unknown\n", *words), exit(2);
    }
    if (!layers || !kernels || !mebibytes)
        fprintf(stderr, "layers, kernels and memory are at least 1\n"), exit(2);
}

int main(int count, char **words)
{
    char name[256] = "";
    void *context, *module;
    unsigned long long from, until;
    (void)count;
    read_arguments(words + 1);
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        return fprintf(stderr, "%s\n", dlerror()), 2;
    MUST(cuInit, (unsigned), 0);
    MUST(cuDeviceGetName, (char *, int, int), name, sizeof(name), 0);
    MUST(cuDeviceGetAttribute, (int *, int, int), &processors, MULTIPROCESSOR_COUNT, 0);
    MUST(cuDevicePrimaryCtxRetain, (void **, int), &context, 0);
    MUST(cuCtxSetCurrent, (void *), context);
    MUST(cuModuleLoadData, (void **, const void *), &module, text);
    MUST(cuModuleGetFunction, (void **, void *, const char *), &compute, module, "sim_spin_for");
    MUST(cuModuleGetFunction, (void **, void *, const char *), &fill, module, "fill_u32");
    MUST(cuMemAlloc_v2, (address *, size_t), &memory, mebibytes << 20);
    MUST(cuStreamCreate, (void **, unsigned), &stream, 1);
    for (int i = 0; i < AHEAD; i++)
        MUST(cuEventCreate, (void **, unsigned), &events[i], 0);
    if (!rounds)
        calibrate(strstr(name, "(simulated)") != NULL);
    if (strcmp(kind, "decode") == 0)
        make_graph();
    begin_step();
    synchronize();
    printf("ready %d %llu\n", getpid(), (unsigned long long)rounds);
    fflush(stdout);
    if (scanf("%llu %llu", &from, &until) != 2)
        _exit(0);
    (trains() ? stay_ahead : wait_for_each)(from, until);
    printf("done %zu\ntook", steps);
    for (size_t i = 0; i < steps; i++)
        printf(" %.0f", took[i]);
    printf("\n");
    fflush(stdout);
    _exit(0);
}
