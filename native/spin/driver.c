/* libcuda, opened by name, and what is said where a call of it fails. */
#include "spin.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct driver cu;

/* A data pointer of dlsym is put where a function pointer is wanted by copying it: ISO C has no cast for that. */
static void find(void *library, const char *name, void *out)
{
    void *found = dlsym(library, name);
    if (!found)
        fail("libcuda.so.1 has no %s: its driver is too old", name);
    memcpy(out, &found, sizeof(found));
}
#define OPEN(name, ...) find(library, #name, &cu.name);

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
    CALLS(OPEN)
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
