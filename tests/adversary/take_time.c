/* Programs that try to have more of a device's time than their cap.
 *
 *   take_time WAY SECONDS [ROUNDS_A_MICROSECOND[,MICROSECONDS_A_CALL]]
 *
 * Each ends after `seconds`, and when one more kernel has run: so what it owes is paid by then. It prints the GPU time of its
 * kernels and the time that passed, in milliseconds, and CLOCK_MONOTONIC at its beginning and end, in seconds; then what ended
 * it or processes of it early: a call and its code, or a signal, and how often. Kernels fill a device, so that none run at once.
 *
 * What kernels and calls take on a real device is measured without the shim: `take_time calibrate 0` prints rounds, and
 * `take_time lengths 0` what a call takes of each way that sets or copies memory, in a full queue. */
#include "take_time.h"

#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

const char spin_text[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                         ".visible .entry sim_spin_for(.param .u64 rounds)\n{\n"
                         ".reg .pred %p; .reg .u64 %n, %i; .reg .u32 %x; .shared .align 4 .u32 s;\n"
                         "ld.param.u64 %n, [rounds];\nmov.u64 %i, 0;\nmov.u32 %x, 1;\n"
                         "L:\nst.volatile.shared.u32 [s], %x;\nld.volatile.shared.u32 %x, [s];\n"
                         "add.u64 %i, %i, 1;\nsetp.lt.u64 %p, %i, %n;\n@%p bra L;\nret;\n}\n";

Handle context, function;
CUresult(*launcher) LAUNCH;
double rounds_a_us = 1000, us_a_call;
static Handle library;
static double seconds, born;
static char **own_words;

/* In memory that processes made by fork share. */
static struct {
    _Atomic double used_us, start;
    char ended[64];   /* what ended one of them early */
    _Atomic int ends; /* how many ended so */
} * all;

static bool is_child;

enum { FIRST = 10 }; /* seconds that the first process may take until it has begun */

void *entry(const char *name)
{
    void *found = dlsym(library, name);
    if (!found)
        fprintf(stderr, "%s is missing\n", name), exit(3);
    return found;
}

double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

bool more(void)
{
    double start = all->start;
    return now() - (start ? start : born + FIRST) < seconds;
}

void used(double us)
{
    double before = all->used_us;
    while (!__extension__({
        double next = before + us;
        __atomic_compare_exchange((double *)&all->used_us, &before, &next, false, __ATOMIC_SEQ_CST,
                                  __ATOMIC_SEQ_CST);
    }))
        ;
}

void report(void)
{
    double end = now();
    double start = all->start ? all->start : born;
    printf("%.3f %.3f %.6f %.6f %s", all->used_us / 1e3, (end - start) * 1e3, start, end, all->ended);
    printf(all->ends > 1 ? ", %d times\n" : "\n", all->ends);
    fflush(stdout);
    _exit(0);
}

void failed(const char *name, CUresult result)
{
    snprintf(all->ended, sizeof(all->ended), "%s: %d", name, result);
    if (is_child)
        _exit(4); // child_ended counts it
    report();
}

void begin(void)
{
    double none = 0, at;
    CU(cuInit, (unsigned), 0);
    CU(cuDevicePrimaryCtxRetain, (Handle *, int), &context, 0);
    CU(cuCtxSetCurrent, (Handle), context);
    function = function_of(new_module());
    at = now();
    __atomic_compare_exchange((double *)&all->start, &none, &at, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

Handle new_module(void)
{
    Handle module;
    CU(cuModuleLoadData, (Handle *, const void *), &module, spin_text);
    return module;
}

Handle function_of(Handle module)
{
    Handle found;
    CU(cuModuleGetFunction, (Handle *, Handle, const char *), &found, module, "sim_spin_for");
    return found;
}

static CUresult try_launch(Handle stream, double us)
{
    static CUresult(*plain) LAUNCH;
    uint64_t rounds = (uint64_t)(us * rounds_a_us);
    void *values[] = {&rounds};
    if (!plain)
        *(void **)&plain = entry("cuLaunchKernel");
    CUresult result =
        (launcher ? launcher : plain)(function, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, values, NULL);
    if (!result)
        used(us);
    return result;
}

void launch(Handle stream, double us)
{
    CUresult result = try_launch(stream, us);
    if (result)
        failed("a launch", result);
}

bool may_launch(Handle stream, double us)
{
    return !try_launch(stream, us);
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

void pause_for(double us)
{
    nanosleep(&(struct timespec){.tv_sec = (time_t)(us / 1e6), .tv_nsec = (long)(us * 1e3) % 1000000000},
              NULL);
}

void honest(void)
{
    for (Handle stream = new_stream(); more(); wait_for(stream))
        launch(stream, 1000);
}

int new_child(void)
{
    int child = fork();
    if (child == 0) {
        is_child = true;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm((unsigned)seconds * 3 + 20);
    }
    return child;
}

bool child_ended(void)
{
    int status;
    if (wait(&status) < 0)
        return false;
    all->ends += status != 0;
    if (WIFSIGNALED(status))
        snprintf(all->ended, sizeof(all->ended), "signal %d", WTERMSIG(status));
    else if (WEXITSTATUS(status) && !all->ended[0])
        snprintf(all->ended, sizeof(all->ended), "exit status %d", WEXITSTATUS(status));
    return true;
}

void start_over(const char *name)
{
    char left[32], rounds[32], before[32], start[32];
    snprintf(left, sizeof(left), "%.6f", seconds);
    snprintf(rounds, sizeof(rounds), "%.6f", rounds_a_us);
    snprintf(before, sizeof(before), "%.3f", all->used_us);
    snprintf(start, sizeof(start), "%.6f", all->start);
    execl("/proc/self/exe", own_words[0], name, left, rounds, before, start, (char *)NULL);
    _exit(5);
}

int early_ends(void)
{
    return all->ends;
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

static const struct way own_ways[] = {
    {"honest", honest, false}, {"calibrate", calibrate, false}, {"lengths", print_lengths, false}, {0}};

static const struct way *find(const char *name)
{
    static const struct way *const files[] = {own_ways,     launch_ways, wait_ways, graph_ways, copy_ways,
                                              process_ways, lack_ways,   end_ways,  hold_ways,  change_ways};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        for (const struct way *way = files[i]; way->name; way++)
            if (strcmp(way->name, name) == 0)
                return way;
    return NULL;
}

int main(int count, char **words)
{
    library = dlopen("libcuda.so.1", RTLD_NOW);
    const struct way *way = count > 2 ? find(words[1]) : NULL;
    all = mmap(NULL, sizeof(*all), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!library || !way || all == MAP_FAILED)
        return fprintf(stderr, "take_time WAY SECONDS [ROUNDS]; %s\n", library ? "" : dlerror()), 2;
    own_words = words;
    born = now();
    seconds = atof(words[2]);
    if (count > 3)
        rounds_a_us = atof(words[3]);
    if (count > 3 && strchr(words[3], ','))
        us_a_call = atof(strchr(words[3], ',') + 1);
    if (count > 5) {
        all->used_us = atof(words[4]);
        all->start = atof(words[5]);
    }
    if (!way->before_init)
        begin();
    way->run();
    if (way->before_init)
        begin();
    launcher = NULL;
    CU(cuCtxSetCurrent, (Handle), context);
    launch(NULL, 1);
    wait_for_all();
    report();
}
