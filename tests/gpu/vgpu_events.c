/* What an event takes of the device between two kernels of a stream, and a kernel that is launched into an idle one.
 * Prints, in microseconds for each of 800 kernels of about 5 us behind a
 * long one: without events, with one behind each 64th, 16th and 4th; then one kernel between two events among others; then
 * one between two events in an idle stream, less the time between the calls that record and launch. Medians. */
#include "vgpu_driver.h"

#include <string.h>
#include <unistd.h>

enum { KERNELS = 800, ROUNDS = 9, SINGLES = 200, PAUSE_US = 100 };

typedef int (*launch_type)(void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                           unsigned int, unsigned int, void *, void **, void **);

static const char text[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                           ".visible .entry sim_spin_for(.param .u64 rounds)\n{\n"
                           ".reg .pred %p; .reg .u64 %n, %i; .reg .u32 %x; .shared .align 4 .u32 s;\n"
                           "ld.param.u64 %n, [rounds];\nmov.u64 %i, 0;\nmov.u32 %x, 1;\n"
                           "L:\nst.volatile.shared.u32 [s], %x;\nld.volatile.shared.u32 %x, [s];\n"
                           "add.u64 %i, %i, 1;\nsetp.lt.u64 %p, %i, %n;\n@%p bra L;\nret;\n}\n";

static void *function, *stream, *first, *last, *between;
static unsigned long long short_one, long_one;

static void launch(unsigned long long rounds)
{
    static launch_type found;
    void *values[] = {&rounds};
    if (!found)
        found = (launch_type)entry("cuLaunchKernel");
    if (found(function, 1, 1, 1, 32, 1, 1, 0, stream, values, NULL) != 0)
        exit(1);
}

static void record(void *event)
{
    MUST("cuEventRecord", (void *, void *), event, stream);
}

/* Microseconds from one event to the other, when all has run. */
static double elapsed(void)
{
    float milliseconds;
    MUST("cuStreamSynchronize", (void *), stream);
    MUST("cuEventElapsedTime", (float *, void *, void *), &milliseconds, first, last);
    return (double)milliseconds * 1e3;
}

/* On a simulated GPU the argument is the time. */
static void calibrate(void)
{
    char name[256] = "";
    double took = 0;
    MUST("cuDeviceGetName", (char *, int, int), name, sizeof(name), 0);
    for (int i = 0; i < 3 && !strstr(name, "(simulated)"); i++) {
        record(first);
        launch(200000);
        record(last);
        took = elapsed();
    }
    short_one = took > 0 ? (unsigned long long)(5.0 * 200000 / took) : 5000;
    long_one = took > 0 ? (unsigned long long)(20000.0 * 200000 / took) : 20000000;
}

static double queued(int every)
{
    launch(long_one);
    record(first);
    for (int i = 1; i <= KERNELS; i++) {
        launch(short_one);
        if (every && i % every == 0 && i < KERNELS)
            record(between);
    }
    record(last);
    return elapsed() / KERNELS;
}

static double among_others(int unused)
{
    (void)unused;
    launch(long_one);
    record(first);
    launch(short_one);
    record(last);
    launch(short_one);
    return elapsed();
}

static double alone(int unused)
{
    (void)unused;
    usleep(PAUSE_US);
    record(first);
    double recorded = now();
    launch(short_one);
    double launched = now();
    record(last);
    return elapsed() - (launched - recorded) / 1e3;
}

static void print_median(double (*measure)(int), int argument, int count)
{
    double found[SINGLES];
    for (int i = 0; i < count; i++)
        found[i] = measure(argument);
    qsort(found, (size_t)count, sizeof(*found), compare);
    printf("%.2f ", found[count / 2]);
}

int main(void)
{
    void *module;
    open_driver();
    MUST("cuInit", (unsigned int), 0);
    use_device(0);
    MUST("cuModuleLoadData", (void **, const void *), &module, text);
    MUST("cuModuleGetFunction", (void **, void *, const char *), &function, module, "sim_spin_for");
    MUST("cuStreamCreate", (void **, unsigned int), &stream, 1);
    MUST("cuEventCreate", (void **, unsigned int), &first, 0);
    MUST("cuEventCreate", (void **, unsigned int), &last, 0);
    MUST("cuEventCreate", (void **, unsigned int), &between, 0);
    calibrate();
    for (int every = 0; every < 4; every++)
        print_median(queued, (int[]){0, 64, 16, 4}[every], ROUNDS);
    print_median(among_others, 0, SINGLES / 10);
    print_median(alone, 0, SINGLES);
    printf("\n");
    fflush(stdout);
    _exit(0);
}
