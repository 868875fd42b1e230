/* Ways of take_time: what is launched, where, and by which call. */
#include "take_time.h"

#include <signal.h>

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
       &loaded, spin_text, NULL, NULL, 0, NULL, NULL, 0);
    CU(cuLibraryGetKernel, (Handle *, Handle, const char *), &kernel, loaded, "sim_spin_for");
    function = kernel;
    CU(cuCtxSetCurrent, (Handle), NULL);
    for (int i = 0; more(); i++) {
        launch(stream, 1000);
        if (i % 64 == 63)
            wait_for(stream);
    }
}

static void new_streams(void)
{
    while (more()) {
        Handle stream = new_stream();
        launch(stream, 5000);
        CU(cuStreamDestroy_v2, (Handle), stream);
    }
}

static void new_contexts(void)
{
    Handle mine, keep = function;
    while (more()) {
        CU(cuCtxCreate_v2, (Handle *, unsigned, int), &mine, 0, 0);
        function = function_of(new_module());
        launch(NULL, 50000);
        CU(cuCtxDestroy_v2, (Handle), mine);
    }
    function = keep;
}

/* Both have something under way at any time. */
static void two_contexts(void)
{
    Handle contexts[2] = {context}, functions[2] = {function}, streams[2] = {new_stream()};
    CU(cuCtxCreate_v2, (Handle *, unsigned, int), &contexts[1], 0, 0);
    functions[1] = function_of(new_module());
    streams[1] = new_stream();
    for (int i = 0; more(); i++) {
        CU(cuCtxSetCurrent, (Handle), contexts[i % 2]);
        function = functions[i % 2];
        launch(streams[i % 2], 3000);
        if (i % 8 == 7)
            wait_for(streams[i % 2]);
    }
    CU(cuCtxDestroy_v2, (Handle), contexts[1]);
    function = functions[0];
}

/* What is known of the function says that many may be under way, and then each is long. */
static void long_behind(int many, int longs)
{
    for (Handle stream = new_stream(); more();) {
        for (int i = 0; i < many && more(); i++)
            launch(stream, 5);
        for (int i = 0; i < longs && more(); i++) /* under a cap of 10 % they are paid for in a minute */
            launch(stream, 20000);
    }
}

static void long_behind_many(void)
{
    long_behind(4000, 256);
}

static void launch_on(Handle stream, double us, int before_a_wait)
{
    for (int i = 0; more(); i++) {
        launch(stream, us);
        if (i % before_a_wait == before_a_wait - 1)
            wait_for(stream);
    }
}

struct configuration { /* CUlaunchConfig */
    unsigned shape[6], shared;
    Handle stream;
    void *attributes;
    unsigned count;
};

struct attribute { /* CUlaunchAttribute */
    int id;
    char pad[4];
    int value;
    char rest[60];
};

static CUresult extended LAUNCH
{
    (void)extra;
    static CUresult (*call)(const struct configuration *, Handle, void **, void **);
    struct attribute overlapping = {.id = 6, .value = 1}; /* programmatic stream serialization */
    struct configuration wanted = {{gx, gy, gz, bx, by, bz}, shared, stream, &overlapping, 1};
    if (!call)
        *(void **)&call = entry("cuLaunchKernelEx");
    return call(&wanted, kernel, values, NULL);
}

/* Each may begin before the one in front of it has ended. */
static void by_ex(void)
{
    launcher = extended;
    launch_on(new_stream(), 3000, 4);
}

static CUresult cooperative LAUNCH
{
    (void)extra;
    static CUresult (*call)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            Handle, void **);
    if (!call)
        *(void **)&call = entry("cuLaunchCooperativeKernel");
    return call(kernel, gx, gy, gz, bx, by, bz, shared, stream, values);
}

static void by_cooperative(void)
{
    launcher = cooperative;
    launch_on(new_stream(), 3000, 4);
}

/* The calls of CUDA 2. */
static CUresult as_of_old LAUNCH
{
    (void)gz, (void)shared, (void)extra;
    CU(cuFuncSetBlockShape, (Handle, int, int, int), kernel, (int)bx, (int)by, (int)bz);
    CU(cuParamSetSize, (Handle, unsigned), kernel, 8);
    CU(cuParamSetv, (Handle, int, void *, unsigned), kernel, 0, values[0], 8);
    CU(cuLaunchGridAsync, (Handle, int, int, Handle), kernel, (int)gx, (int)gy, stream);
    return 0;
}

static void by_old_calls(void)
{
    launcher = as_of_old;
    launch_on(new_stream(), 3000, 4);
}

static void find_launcher(const char *name, unsigned long long flags)
{
    int status;
    CU(cuGetProcAddress_v2, (const char *, void **, int, unsigned long long, int *), name,
       (void **)&launcher, 12000, flags, &status);
    if (!launcher)
        failed(name, NOT_SUPPORTED);
}

/* As the runtime library finds it; the default stream is the thread's own. */
static void by_address(void)
{
    find_launcher("cuLaunchKernel", 2);
    launch_on(NULL, 4000, 3);
}

static void by_thread_symbol(void)
{
    *(void **)&launcher = entry("cuLaunchKernel_ptsz");
    launch_on(NULL, 4000, 3);
}

/* Nothing is known of a kernel of a module that was just loaded. */
static void new_modules(void)
{
    Handle stream = new_stream(), keep = function;
    while (more()) {
        Handle module = new_module();
        function = function_of(module);
        launch(stream, 20000);
        CU(cuModuleUnload, (Handle), module);
    }
    function = keep;
}

static Handle of_handler;

static void handler(int number)
{
    (void)number;
    launch(of_handler, 2500);
}

static void in_signal(void)
{
    of_handler = new_stream();
    signal(SIGUSR1, handler);
    for (int i = 0; more(); i++) {
        raise(SIGUSR1);
        if (i % 4 == 3)
            wait_for(of_handler);
    }
}

/* In a context of some multiprocessors, which this kernel's blocks fill as well. */
static void green(void)
{
    char resource[512] = {0};
    Handle description, made, stream;
    CU(cuDeviceGetDevResource, (int, void *, int), 0, resource, 1);
    CU(cuDevResourceGenerateDesc, (Handle *, void *, unsigned), &description, resource, 1);
    CU(cuGreenCtxCreate, (Handle *, Handle, int, unsigned), &made, description, 0, 1);
    CU(cuGreenCtxStreamCreate, (Handle *, Handle, unsigned, int), &stream, made, 1, 0);
    launch_on(stream, 3000, 4);
}

const struct way launch_ways[] = {{"queue", queue, false},
                                  {"alternate", alternate, false},
                                  {"streams", many_streams, false},
                                  {"no-context", without_context, false},
                                  {"new-streams", new_streams, false},
                                  {"new-contexts", new_contexts, false},
                                  {"two-contexts", two_contexts, false},
                                  {"long-behind-many", long_behind_many, false},
                                  {"ex", by_ex, false},
                                  {"cooperative", by_cooperative, false},
                                  {"old-calls", by_old_calls, false},
                                  {"proc-address", by_address, false},
                                  {"ptsz", by_thread_symbol, false},
                                  {"new-modules", new_modules, false},
                                  {"signal", in_signal, false},
                                  {"green", green, false},
                                  {0}};
