/* Times of driver calls, in nanoseconds: prints `name value` for each. Usage: vgpu_time [times]. The library is whichever
 * libcuda.so.1 the loader finds. */
#include "vgpu_driver.h"

/* The median of many rounds of `times` calls each. */
#define TIME(name, times, call)                                                                             \
    do {                                                                                                    \
        double rounds_[21];                                                                                 \
        for (int round_ = 0; round_ < 21; round_++) {                                                       \
            double from_ = now();                                                                           \
            for (int i_ = 0; i_ < (times); i_++)                                                            \
                if ((call) != 0) {                                                                          \
                    fprintf(stderr, "%s failed\n", name);                                                   \
                    exit(1);                                                                                \
                }                                                                                           \
            rounds_[round_] = (now() - from_) / (times);                                                    \
            MUST("cuCtxSynchronize", (void), );                                                             \
        }                                                                                                   \
        qsort(rounds_, 21, sizeof(rounds_[0]), compare);                                                    \
        printf("%s %.0f\n", name, rounds_[10]);                                                             \
    } while (0)

static const char kernel[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry work()\n{\nret;\n}\n";

typedef int (*allocate_type)(pointer *, size_t);
typedef int (*free_type)(pointer);
typedef int (*launch_type)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                           void *, void **, void **);
typedef int (*copy_type)(pointer, const void *, size_t, void *);
typedef int (*record_type)(void *, void *);

static int pair(allocate_type allocate, free_type give_back, size_t size)
{
    pointer at;
    return allocate(&at, size) || give_back(at);
}

int main(void)
{
    void *context, *module, *function, *event, *stream;
    pointer memory, small;
    static char host[64];

    open_driver();
    double from = now();
    MUST("cuInit", (unsigned), 0);
    MUST("cuDevicePrimaryCtxRetain", (void **, int), &context, 0);
    printf("start %.0f\n", now() - from);
    MUST("cuCtxSetCurrent", (void *), context);
    MUST("cuModuleLoadData", (void **, const void *), &module, kernel);
    MUST("cuModuleGetFunction", (void **, void *, const char *), &function, module, "work");
    MUST("cuStreamCreate", (void **, unsigned), &stream, 1);
    MUST("cuEventCreate", (void **, unsigned), &event, 2);
    MUST("cuMemAlloc_v2", (pointer *, size_t), &memory, 1 << 20);
    MUST("cuMemAlloc_v2", (pointer *, size_t), &small, 1 << 10);

    launch_type launch = (launch_type)entry("cuLaunchKernel");
    allocate_type allocate = (allocate_type)entry("cuMemAlloc_v2");
    free_type give_back = (free_type)entry("cuMemFree_v2");
    copy_type copy = (copy_type)entry("cuMemcpyHtoDAsync_v2");
    record_type record = (record_type)entry("cuEventRecord");
    TIME("launch", 500, launch(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    TIME("small", 2000, pair(allocate, give_back, 1024));
    TIME("large", 50, pair(allocate, give_back, 64 << 20));
    TIME("copy", 500, copy(memory, host, sizeof(host), stream));
    TIME("record", 1000, record(event, stream));
    return 0;
}
