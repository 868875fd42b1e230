/* Programs that try to have more of a device's time than their cap. Each ends after `seconds` and prints the GPU time of
 * the kernels that have ended, and the time that passed, in milliseconds. Kernels fill a device, so that none run at once.
 *
 *   take_time WAY SECONDS [ROUNDS_A_MICROSECOND]
 *
 * On a real device a kernel's length is calibrated with the shim's cap in force, unless the last argument gives it:
 * `take_time calibrate 0` without the shim prints it. */
#include "take_time.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char text[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                           ".visible .entry sim_spin_for(.param .u64 rounds)\n{\n"
                           ".reg .pred %p; .reg .u64 %n, %i; .reg .u32 %x; .shared .align 4 .u32 s;\n"
                           "ld.param.u64 %n, [rounds];\nmov.u64 %i, 0;\nmov.u32 %x, 1;\n"
                           "L:\nst.volatile.shared.u32 [s], %x;\nld.volatile.shared.u32 %x, [s];\n"
                           "add.u64 %i, %i, 1;\nsetp.lt.u64 %p, %i, %n;\n@%p bra L;\nret;\n}\n";

Handle context;
_Atomic double used_us;
static Handle library, function;
static double rounds_a_us = 1000, seconds;

void *entry(const char *name)
{
    void *found = dlsym(library, name);
    if (!found)
        fprintf(stderr, "%s is missing\n", name), exit(3);
    return found;
}

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static double start;

bool more(void)
{
    return now() - start < seconds;
}

void launch(Handle stream, double us)
{
    uint64_t rounds = (uint64_t)(us * rounds_a_us);
    void *values[] = {&rounds};
    static CUresult (*call)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            Handle, void **, void **);
    if (!call)
        *(void **)&call = entry("cuLaunchKernel");
    CUresult result = call(function, 264, 1, 1, 1024, 1, 1, 0, stream, values, NULL);
    if (result)
        fprintf(stderr, "cuLaunchKernel: %d\n", result), exit(4);
    used_us = used_us + us;
}

Handle new_stream(void)
{
    Handle stream;
    CU(cuStreamCreate, (Handle *, unsigned), &stream, 1);
    return stream;
}

void wait_for(Handle stream)
{
    CU(cuStreamSynchronize, (Handle), stream);
}

void wait_for_all(void)
{
    CU(cuCtxSynchronize, (void), );
}

void honest(void)
{
    for (Handle stream = new_stream(); more(); wait_for(stream))
        launch(stream, 1000);
}

static void queue(void)
{
    for (Handle stream = new_stream(); more();)
        launch(stream, 5);
}

static void alternate(void)
{
    Handle stream = new_stream();
    while (more()) {
        for (int i = 0; i < 60; i++)
            launch(stream, 1);
        wait_for(stream);
        launch(stream, 100000);
        wait_for(stream);
    }
}

static void alternate_queued(void)
{
    for (Handle stream = new_stream(); more();) {
        for (int i = 0; i < 60; i++)
            launch(stream, 1);
        launch(stream, 20000);
    }
}

static void many_streams(void)
{
    enum { STREAMS = 4000 };
    static Handle streams[STREAMS];
    for (int i = 0; i < STREAMS; i++)
        streams[i] = new_stream();
    for (int i = 0; more(); i++)
        launch(streams[i % STREAMS], 200);
}

static void without_context(void)
{
    Handle stream = new_stream(), loaded, kernel;
    CU(cuLibraryLoadData, (Handle *, const void *, void *, void *, unsigned, void *, void *, unsigned),
       &loaded, text, NULL, NULL, 0, NULL, NULL, 0);
    CU(cuLibraryGetKernel, (Handle *, Handle, const char *), &kernel, loaded, "sim_spin_for");
    function = kernel;
    CU(cuCtxSetCurrent, (Handle), NULL);
    for (int i = 0; more(); i++) {
        launch(stream, 1000);
        if (i % 64 == 63)
            wait_for(stream);
    }
}

static void without_waiting(void)
{
    struct timespec gap = {.tv_nsec = 300000};
    for (Handle stream = new_stream(); more(); nanosleep(&gap, NULL))
        launch(stream, 5000);
}

static void new_streams(void)
{
    while (more()) {
        Handle stream = new_stream();
        launch(stream, 5000);
        CU(cuStreamDestroy_v2, (Handle), stream);
    }
}

static void by_event(void)
{
    Handle stream = new_stream(), event;
    CU(cuEventCreate, (Handle *, unsigned), &event, 2);
    CUresult (*query)(Handle) = NULL;
    *(void **)&query = entry("cuEventQuery");
    while (more()) {
        launch(stream, 3000);
        CU(cuEventRecord, (Handle, Handle), event, stream);
        while (query(event) == 600)
            ;
    }
}

static void by_copy(void)
{
    Address memory;
    char bytes[64];
    CU(cuMemAlloc_v2, (Address *, size_t), &memory, 64);
    while (more()) {
        launch(NULL, 3000);
        CU(cuMemcpyDtoH_v2, (void *, Address, size_t), bytes, memory, sizeof(bytes));
    }
}

static void *of_thread(void *unused)
{
    (void)unused;
    CU(cuCtxSetCurrent, (Handle), context);
    for (int i = 0; more(); i++) {
        launch((Handle)2, 2000);
        if (i % 4 == 3)
            wait_for((Handle)2);
    }
    return NULL;
}

static void threads(void)
{
    pthread_t made[16];
    for (int i = 0; i < 16; i++)
        pthread_create(&made[i], NULL, of_thread, NULL);
    for (int i = 0; i < 16; i++)
        pthread_join(made[i], NULL);
}

static void new_contexts(void)
{
    Handle mine, module, keep = function;
    while (more()) {
        CU(cuCtxCreate_v2, (Handle *, unsigned, int), &mine, 0, 0);
        CU(cuModuleLoadData, (Handle *, const void *), &module, text);
        CU(cuModuleGetFunction, (Handle *, Handle, const char *), &function, module, "sim_spin_for");
        launch(NULL, 50000);
        CU(cuCtxDestroy_v2, (Handle), mine);
    }
    CU(cuCtxSetCurrent, (Handle), context);
    function = keep;
}

static void graphs(void)
{
    Handle stream = new_stream(), graph, exec;
    double before = used_us;
    CU(cuStreamBeginCapture_v2, (Handle, int), stream, 2);
    for (int i = 0; i < 100; i++)
        launch(stream, 100);
    CU(cuStreamEndCapture, (Handle, Handle *), stream, &graph);
    CU(cuGraphInstantiateWithFlags, (Handle *, Handle, unsigned long long), &exec, graph, 0);
    used_us = before;
    while (more()) {
        CU(cuGraphLaunch, (Handle, Handle), exec, stream);
        used_us = used_us + 10000;
    }
}

static void once(void)
{
    launch(NULL, 200000);
    used_us = 200000;
    if (seconds > 0)
        wait_for_all();
}

/* Of several lengths, by chance, and the host does something else now and then. */
static void at_random(void)
{
    Handle streams[3] = {new_stream(), new_stream(), NULL};
    unsigned seed = 7;
    while (more()) {
        int what = rand_r(&seed) % 16;
        launch(streams[what % 3], what < 12 ? 5 : what < 15 ? 300 : 8000);
        if (what == 3)
            wait_for(streams[rand_r(&seed) % 3]);
        if (what == 5)
            nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
}

static void calibrate(void)
{
    Handle stream = new_stream();
    rounds_a_us = 1;
    launch(stream, 1000000);
    wait_for(stream);
    double from = now();
    launch(stream, 10000000);
    wait_for(stream);
    printf("%.3f\n", 10000000 / ((now() - from) * 1e6));
    exit(0);
}

static const struct {
    const char *name;
    void (*run)(void);
} ways[] = {{"honest", honest},
            {"queue", queue},
            {"alternate", alternate},
            {"alternate-queued", alternate_queued},
            {"streams", many_streams},
            {"no-context", without_context},
            {"no-wait", without_waiting},
            {"new-streams", new_streams},
            {"event", by_event},
            {"copy", by_copy},
            {"threads", threads},
            {"new-contexts", new_contexts},
            {"graphs", graphs},
            {"once", once},
            {"random", at_random},
            {"no-descriptors", without_descriptors},
            {"no-memory", without_memory},
            {"short-threads", short_threads},
            {"null-stream", null_stream},
            {"callback", by_callback},
            {"another-waits", waited_for_by_another},
            {"capture", beside_a_capture},
            {"long-behind-short", long_behind_short},
            {"calibrate", calibrate}};

int main(int count, char **words)
{
    Handle module;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library || count < 3)
        return fprintf(stderr, "take_time WAY SECONDS [ROUNDS]; %s\n", library ? "" : dlerror()), 2;
    seconds = atof(words[2]);
    if (count > 3)
        rounds_a_us = atof(words[3]);
    CU(cuInit, (unsigned), 0);
    CU(cuDevicePrimaryCtxRetain, (Handle *, int), &context, 0);
    CU(cuCtxSetCurrent, (Handle), context);
    CU(cuModuleLoadData, (Handle *, const void *), &module, text);
    CU(cuModuleGetFunction, (Handle *, Handle, const char *), &function, module, "sim_spin_for");
    start = now();
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
        if (strcmp(words[1], ways[i].name) == 0)
            ways[i].run();
    CU(cuCtxSetCurrent, (Handle), context);
    if (strcmp(words[1], "once") != 0)
        wait_for_all();
    printf("%.3f %.3f\n", used_us / 1e3, (now() - start) * 1e3);
    fflush(stdout);
    _exit(0);
}
