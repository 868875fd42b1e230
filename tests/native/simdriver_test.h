/* Tests of the simulated libcuda that need one process only. A case ends the process with a message where it fails. */
#pragma once

#include "simdriver_api.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct test {
    const char *name;
    void (*run)(void);
};

extern const struct test device_tests[], copy_tests[], stream_tests[], module_tests[], graph_tests[];

#define MIB ((size_t)1 << 20)

#define CHECK(condition)                                                                                    \
    do {                                                                                                    \
        if (!(condition)) {                                                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                 \
            exit(1);                                                                                        \
        }                                                                                                   \
    } while (0)

/* A call whose result must be this. */
#define EXPECT(code, call)                                                                                  \
    do {                                                                                                    \
        CUresult result_ = (call);                                                                          \
        if (result_ != (code)) {                                                                            \
            fprintf(stderr, "%s:%d: %s is %d, not %d\n", __FILE__, __LINE__, #call, (int)result_,           \
                    (int)(code));                                                                           \
            exit(1);                                                                                        \
        }                                                                                                   \
    } while (0)

#define OK(call) EXPECT(CUDA_SUCCESS, call)

/* Initialises and makes the primary context of device 0 current. */
CUcontext use_device(void);

/* Bytes of the current device in use. */
size_t used_bytes(void);

/* A kernel by name, from a module that has every kernel. */
CUfunction kernel(const char *name);

/* Launches one thread, or enough blocks to fill the device. */
void launch_small(CUfunction function, CUstream stream, void **arguments);
void launch_full(CUfunction function, CUstream stream, void **arguments);

/* Milliseconds between two recorded events. */
float elapsed(CUevent from, CUevent to);
