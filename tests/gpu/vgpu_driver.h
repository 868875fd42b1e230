/* Calls of the CUDA driver by name, from whichever libcuda.so.1 the loader finds. */
#pragma once

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef unsigned long long pointer;

static void *library;

static inline void open_driver(void)
{
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
}

static inline void *entry(const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    return found;
}

/* The driver's result. */
#define CALL(name, types, ...) ((int(*) types)entry(name))(__VA_ARGS__)
/* The program ends where it is another one than success. */
#define MUST(name, types, ...)                                                                              \
    do {                                                                                                    \
        int code_ = CALL(name, types, __VA_ARGS__);                                                         \
        if (code_ != 0) {                                                                                   \
            fprintf(stderr, "%s: %d\n", name, code_);                                                       \
            exit(1);                                                                                        \
        }                                                                                                   \
    } while (0)

/* The primary context of a device, for this thread. */
static inline void *use_device(int ordinal)
{
    int device;
    void *context;
    MUST("cuDeviceGet", (int *, int), &device, ordinal);
    MUST("cuDevicePrimaryCtxRetain", (void **, int), &context, device);
    MUST("cuCtxSetCurrent", (void *), context);
    return context;
}

/* For qsort(3), of doubles. */
static inline int compare(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

/* Nanoseconds of a clock that only goes on. */
static inline double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e9 + (double)at.tv_nsec;
}
