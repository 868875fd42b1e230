/* nvc-spin: takes memory, keeps a GPU busy with kernels of one length, and says how many it does a second. */
#include "spin.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>

/* PTX that any driver since CUDA 11 compiles: `rounds` of a loop that no compiler can shorten. A simulated GPU knows
 * the kernel by its name, and takes a round for a nanosecond. */
static const char image[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                            ".visible .entry sim_spin_for(.param .u64 rounds)\n{\n"
                            ".reg .pred %p; .reg .u64 %n, %i; .reg .u32 %x; .shared .align 4 .u32 s;\n"
                            "ld.param.u64 %n, [rounds];\nmov.u64 %i, 0;\nmov.u32 %x, 1;\n"
                            "L:\nst.volatile.shared.u32 [s], %x;\nld.volatile.shared.u32 %x, [s];\n"
                            "add.u64 %i, %i, 1;\nsetp.lt.u64 %p, %i, %n;\n@%p bra L;\nret;\n}\n";

enum { THREADS = 32, LEAST_TRIES = 3, MOST_TRIES = 100, FIRST_ROUNDS = 500, MOST_AHEAD = 8, MARKS };
#define AHEAD_NS                                                                                            \
    8000000      /* GPU time of steps that are launched and not done: the host may be late by so much */
#define LATE 0.1 /* seconds by which pauses may be too long and are made up for */
#define SHORT_NS 400e3 /* what a measurement takes: less than a turn on the GPU */
#define AGREE 1.03     /* as much may two measurements differ */
#define STRAIGHT 0.1   /* by this part may four times the work differ from twice that of two times */
#define PATIENCE 2     /* seconds after which the step's time stays unknown */
#define MOST_ROUNDS (UINT64_C(1) << 30)

static cu_function kernel;
static cu_stream stream;
static cu_event marks[MARKS]; /* one after each step that is under way, and the one before */
static unsigned int blocks;
static int device;

static volatile sig_atomic_t interrupted;

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

/* The first signal ends the loop; one that comes a second later the program, since then a call of the driver does not
 * return. A shell's `kill %1` sends it twice: to `nvc-cli vgpu run`, which hands it on, and to this program. */
static void interrupt(int number)
{
    static double first;
    if (interrupted && now() - first > 1) {
        signal(number, SIG_DFL);
        raise(number);
    }
    if (!interrupted)
        first = now();
    interrupted = 1;
}

static void listen_to(int number)
{
    struct sigaction action = {.sa_handler = interrupt};
    sigfillset(&action.sa_mask);
    sigaction(number, &action, NULL);
}

static void sleep_until(double when)
{
    struct timespec at = {.tv_sec = (time_t)when, .tv_nsec = (long)((when - (double)(time_t)when) * 1e9)};
    if (!interrupted)
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

static void launch(uint64_t rounds)
{
    void *values[] = {&rounds};
    MUST(cuLaunchKernel, kernel, blocks, 1, 1, THREADS, 1, 1, 0, stream, values, NULL);
}

/* Nanoseconds between two kernels of so many rounds, the second of which may have to wait for others' turns. The first
 * one has waited for ours. */
static double measured_once(uint64_t rounds)
{
    float ms;
    launch(rounds);
    MUST(cuEventRecord, marks[0], stream);
    launch(rounds);
    MUST(cuEventRecord, marks[1], stream);
    MUST(cuStreamSynchronize, stream);
    MUST(cuEventElapsedTime, &ms, marks[0], marks[1]);
    return (double)ms * 1e6;
}

/* Nanoseconds of a kernel of so many rounds: the least of some tries, of which two agree. */
static double measured(uint64_t rounds)
{
    double least = measured_once(rounds), second = least * 1e3;
    for (int i = 1; i < MOST_TRIES && (i < LEAST_TRIES || second > least * AGREE) && !interrupted; i++) {
        double ns = measured_once(rounds);
        second = ns < least ? least : ns < second ? ns : second;
        least = ns < least ? ns : least;
    }
    return least;
}

/* Rounds of the kernel's loop in `ns` of GPU time, from what one, two and four times some rounds take: what a launch
 * takes falls out of the differences, and so does the same wait for another program each time. While other programs
 * use the GPU, the waits differ, and the differences do not double: then the step's time is not `known`. */
static uint64_t rounds_in(uint64_t ns, bool *known)
{
    const double begin = now();
    uint64_t rounds = FIRST_ROUNDS;
    double more = 0;
    *known = false;
    while (measured_once(2 * rounds) < SHORT_NS && rounds < MOST_ROUNDS)
        rounds *= 2;
    for (int tries = 0; tries < MOST_TRIES && !*known && !interrupted; tries++) {
        if (more > 0 && now() > begin + PATIENCE)
            break;
        if (tries > 0 && more < SHORT_NS / 2 && rounds < MOST_ROUNDS)
            rounds *= 2; /* the waits hid how short the kernels are */
        const double one = measured(rounds), two = measured(2 * rounds), four = measured(4 * rounds);
        const double bend = four - two - 2 * (two - one);
        more = four - two;
        *known = more >= SHORT_NS / 2 && bend < STRAIGHT * more && -bend < STRAIGHT * more;
    }
    if (interrupted)
        return 1; /* nothing is launched any more */
    if (more <= 0)
        fail("the GPU took no longer for twice the work: its time cannot be measured");
    return (uint64_t)((double)ns * (double)(2 * rounds) / more) + 1;
}

static double gib(uint64_t bytes)
{
    return (double)bytes / (double)(UINT64_C(1) << 30);
}

static void take_memory(struct options *wanted)
{
    size_t unused, all;
    uint64_t at;
    MUST(cuMemGetInfo_v2, &unused, &all);
    if (wanted->memory_percent)
        wanted->memory = all / 100 * (uint64_t)wanted->memory_percent;
    if (wanted->memory) {
        char call[128];
        snprintf(call, sizeof(call), "cuMemAlloc_v2 of %.2f GiB, with %.2f of %.2f GiB free",
                 gib(wanted->memory), gib(unused), gib(all));
        must(cu.cuMemAlloc_v2(&at, wanted->memory), call);
    }
}

static void prepare(struct options *wanted)
{
    int processors;
    size_t unused, all;
    void *context, *module;
    char name[256] = "";
    driver_open();
    MUST(cuInit, 0);
    MUST(cuDeviceGet, &device, wanted->device);
    MUST(cuDeviceGetName, name, sizeof(name) - 1, device);
    MUST(cuDeviceGetAttribute, &processors, CU_MULTIPROCESSORS, device);
    MUST(cuDevicePrimaryCtxRetain, &context, device);
    MUST(cuCtxSetCurrent, context);
    take_memory(wanted);
    MUST(cuMemGetInfo_v2, &unused, &all);
    printf("%s: %.2f of %.2f GiB taken\n", name, gib(wanted->memory), gib(all));
    MUST(cuModuleLoadData, &module, image);
    MUST(cuModuleGetFunction, &kernel, module, "sim_spin_for");
    MUST(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < MARKS; i++)
        MUST(cuEventCreate, &marks[i], CU_EVENT_BLOCKING_SYNC);
    blocks = (unsigned int)processors;
}

/* One line of steps, of which each takes `ns` of the GPU's time at least; 0: not known. */
static void tell(const char *when, uint64_t steps, double seconds, double ns)
{
    double rate = (double)steps / seconds, percent = rate * ns / 1e7;
    printf("%s  %8.1f steps/s", when, rate);
    if (ns > 0) /* steps that ended before the last line may have been seen since */
        printf("  %5.1f%% of the GPU's time", percent < 100 ? percent : 100);
    putchar('\n');
}

/* The time of a step: as measured at the start, or what the last one took if that is less. No step takes longer than
 * from the end of the one before to its own, so steps of the least such time fit into the time that went by. */
static double least_of(double least, uint64_t step)
{
    float ms;
    MUST(cuEventElapsedTime, &ms, marks[(step - 1) % MARKS], marks[step % MARKS]);
    return (double)ms * 1e6 < least ? (double)ms * 1e6 : least;
}

static uint64_t steps_ahead(const struct options *wanted)
{
    uint64_t steps = AHEAD_NS / wanted->kernel_ns;
    if (wanted->load < 100)
        return 1;
    return steps < 2 ? 2 : steps > MOST_AHEAD ? MOST_AHEAD : steps;
}

/* Launches steps: at full load some before the last one has ended, else each at its time. */
static void spin(const struct options *wanted, uint64_t rounds, bool known)
{
    const double begin = now(), end = wanted->seconds > 0 ? begin + wanted->seconds : 0;
    const double period = (double)wanted->kernel_ns / 1e9 * 100 / wanted->load;
    const uint64_t ahead = steps_ahead(wanted);
    double told = begin, next = begin;
    uint64_t launched = 0, done = 0, told_of = 0;
    double ns = known ? (double)wanted->kernel_ns : 0;
    char when[64];
    MUST(cuEventRecord, marks[0], stream);
    while (!interrupted && (end == 0 || now() < end)) {
        launch(rounds);
        MUST(cuEventRecord, marks[++launched % MARKS], stream);
        if (launched - done == ahead) {
            MUST(cuEventSynchronize, marks[++done % MARKS]);
            ns = least_of(ns, done);
        }
        if (wanted->load < 100) {
            next = now() > next + LATE ? now() + period : next + period;
            sleep_until(end > 0 && next > end ? end : next);
        }
        if (now() >= told + 1) {
            double at = now();
            snprintf(when, sizeof(when), "%6.0f s", at - begin);
            tell(when, done - told_of, at - told, ns);
            told = at, told_of = done;
        }
    }
    MUST(cuStreamSynchronize, stream);
    snprintf(when, sizeof(when), "%llu steps in %.1f s:", (unsigned long long)launched, now() - begin);
    tell(when, launched, now() - begin, ns);
}

int main(int count, char **words)
{
    struct options wanted = options_read(count, words);
    setvbuf(stdout, NULL, _IOLBF, 0);
    prepare(&wanted);
    listen_to(SIGINT);
    listen_to(SIGTERM);
    bool known;
    const uint64_t rounds = rounds_in(wanted.kernel_ns, &known);
    if (!known && !interrupted)
        puts("other programs use the GPU, so the time of a step is not known: only steps are counted");
    spin(&wanted, rounds, known);
    MUST(cuDevicePrimaryCtxRelease_v2, device);
    return fflush(stdout) != 0;
}
