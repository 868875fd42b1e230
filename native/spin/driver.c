/* libcuda, opened by name, and what is said where a call of it fails. */
#include "spin.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct driver cu;

/* A data pointer of dlsym is put where a function pointer is wanted by copying it: ISO C has no cast for that. */
static const struct {
    const char *name;
    size_t at;
} calls[] = {
#define CALL(name)                                                                                          \
    {                                                                                                       \
#name, offsetof(struct driver, name)                                                                \
    }
    CALL(cuInit),
    CALL(cuDeviceGet),
    CALL(cuDeviceGetName),
    CALL(cuDeviceGetAttribute),
    CALL(cuDevicePrimaryCtxRetain),
    CALL(cuDevicePrimaryCtxRelease_v2),
    CALL(cuCtxSetCurrent),
    CALL(cuMemGetInfo_v2),
    CALL(cuMemAlloc_v2),
    CALL(cuModuleLoadData),
    CALL(cuModuleGetFunction),
    CALL(cuStreamCreate),
    CALL(cuStreamSynchronize),
    CALL(cuEventCreate),
    CALL(cuEventRecord),
    CALL(cuEventSynchronize),
    CALL(cuEventElapsedTime),
    CALL(cuLaunchKernel),
    CALL(cuGetErrorName),
    CALL(cuGetErrorString),
#undef CALL
};

void fail(const char *format, ...)
{
    va_list arguments;
    fflush(stdout);
    fputs("nvc-spin: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

void driver_open(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        fail("%s\n"
             "nvc-spin: there is no NVIDIA driver here: `nvc-cli doctor` says why. Run it by\n"
             "nvc-spin: `nvc-cli --root DIR vgpu run` to use a simulated driver in DIR",
             dlerror());
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        void *found = dlsym(library, calls[i].name);
        if (!found)
            fail("libcuda.so.1 has no %s: its driver is too old", calls[i].name);
        memcpy((char *)&cu + calls[i].at, &found, sizeof(found));
    }
}

void must(int result, const char *call)
{
    const char *name = "unknown error", *text = "no description";
    if (result == CU_SUCCESS)
        return;
    cu.cuGetErrorName(result, &name);
    cu.cuGetErrorString(result, &text);
    fail("%s: %s (%d): %s", call, name ? name : "unknown error", result, text ? text : "no description");
}
