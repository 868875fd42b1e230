/* nvc-spin: loads a GPU, simulated or real. Needs a C library and, at run time, libcuda.so.1. */
#ifndef NVC_SPIN_H
#define NVC_SPIN_H

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
struct driver {
    int (*cuInit)(unsigned int);
    int (*cuDeviceGet)(int *, int);
    int (*cuDeviceGetName)(char *, int, int);
    int (*cuDeviceGetAttribute)(int *, int, int);
    int (*cuDevicePrimaryCtxRetain)(void **, int);
    int (*cuDevicePrimaryCtxRelease_v2)(int);
    int (*cuCtxSetCurrent)(void *);
    int (*cuMemGetInfo_v2)(size_t *, size_t *);
    int (*cuMemAlloc_v2)(uint64_t *, size_t);
    int (*cuModuleLoadData)(void **, const void *);
    int (*cuModuleGetFunction)(cu_function *, void *, const char *);
    int (*cuStreamCreate)(cu_stream *, unsigned int);
    int (*cuStreamSynchronize)(cu_stream);
    int (*cuEventCreate)(cu_event *, unsigned int);
    int (*cuEventRecord)(cu_event, cu_stream);
    int (*cuEventSynchronize)(cu_event);
    int (*cuEventElapsedTime)(float *, cu_event, cu_event);
    int (*cuLaunchKernel)(cu_function, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                          unsigned int, unsigned int, cu_stream, void **, void **);
    int (*cuGetErrorName)(int, const char **);
    int (*cuGetErrorString)(int, const char **);
};

extern struct driver cu;

/* Opens libcuda.so.1 by its name, as programs in containers do; ends the program (1) where it cannot. */
void driver_open(void);

/* Ends the program (1) with the call, and the driver's name, number and words for an error. */
void must(int result, const char *call);

#define MUST(name, ...) must(cu.name(__VA_ARGS__), #name)

/* One line on standard error, `nvc-spin: ...`; the program ends with 1. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
