/* nvc-spin: loads a GPU, simulated or real. Needs a C library and, at run time, libcuda.so.1. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct options {
    int device;         /* as CUDA counts */
    uint64_t memory;    /* bytes to take; 0: none */
    int memory_percent; /* or this part of what the device has */
    uint64_t kernel_ns; /* GPU time of one step */
    int load;           /* percent of the time in which there is work to do */
    double seconds;     /* 0: until interrupted */
};

/* Reads the command line; ends the program for --help (0) and what it does not understand (2). */
struct options options_read(int count, char **words);

typedef struct stream *cu_stream;
typedef struct event *cu_event;
typedef struct function *cu_function;

enum {
    CU_SUCCESS = 0,
    CU_MULTIPROCESSORS = 16, /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */
    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_BLOCKING_SYNC = 1
};

/* The calls in use, by their names in the library. Every one returns 0 or an error. */
#define CALLS(CALL)                                                                                         \
    CALL(cuInit, unsigned int)                                                                              \
    CALL(cuDeviceGet, int *, int)                                                                           \
    CALL(cuDeviceGetName, char *, int, int)                                                                 \
    CALL(cuDeviceGetAttribute, int *, int, int)                                                             \
    CALL(cuDevicePrimaryCtxRetain, void **, int)                                                            \
    CALL(cuDevicePrimaryCtxRelease_v2, int)                                                                 \
    CALL(cuCtxSetCurrent, void *)                                                                           \
    CALL(cuMemGetInfo_v2, size_t *, size_t *)                                                               \
    CALL(cuMemAlloc_v2, uint64_t *, size_t)                                                                 \
    CALL(cuModuleLoadData, void **, const void *)                                                           \
    CALL(cuModuleGetFunction, cu_function *, void *, const char *)                                          \
    CALL(cuStreamCreate, cu_stream *, unsigned int)                                                         \
    CALL(cuStreamSynchronize, cu_stream)                                                                    \
    CALL(cuEventCreate, cu_event *, unsigned int)                                                           \
    CALL(cuEventRecord, cu_event, cu_stream)                                                                \
    CALL(cuEventSynchronize, cu_event)                                                                      \
    CALL(cuEventElapsedTime, float *, cu_event, cu_event)                                                   \
    CALL(cuLaunchKernel, cu_function, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, \
         unsigned int, unsigned int, cu_stream, void **, void **)                                           \
    CALL(cuGetErrorName, int, const char **)                                                                \
    CALL(cuGetErrorString, int, const char **)

#define MEMBER(name, ...) int (*name)(__VA_ARGS__);
extern struct driver {
    CALLS(MEMBER)
} cu;

/* Opens libcuda.so.1 by its name, as programs in containers do; ends the program (1) where it cannot. */
void driver_open(void);

/* Ends the program (1) with the call, and the driver's name, number and words for an error. */
void must(int result, const char *call);

#define MUST(name, ...) must(cu.name(__VA_ARGS__), #name)

/* One line on standard error, `nvc-spin: ...`; the program ends with 1. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
