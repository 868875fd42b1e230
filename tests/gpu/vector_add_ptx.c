/* Runs a kernel on each visible GPU through the driver API alone: the PTX is compiled by the driver itself, so the
 * compiler libraries must be there too. Prints a line for each GPU; exit 0 when every sum is right. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define N 4096

static const char *const PTX =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry add(.param .u64 a, .param .u64 b, .param .u64 c) {\n"
    ".reg .u32 %r<5>; .reg .u64 %d<8>; .reg .f32 %f<4>;\n"
    "ld.param.u64 %d1,[a]; ld.param.u64 %d2,[b]; ld.param.u64 %d3,[c];\n"
    "mov.u32 %r1,%ctaid.x; mov.u32 %r2,%ntid.x; mov.u32 %r3,%tid.x; mad.lo.u32 %r4,%r1,%r2,%r3;\n"
    "mul.wide.u32 %d4,%r4,4; add.u64 %d5,%d1,%d4; add.u64 %d6,%d2,%d4; add.u64 %d7,%d3,%d4;\n"
    "ld.global.f32 %f1,[%d5]; ld.global.f32 %f2,[%d6]; add.f32 %f3,%f1,%f2; st.global.f32 [%d7],%f3; ret; "
    "}\n";

static void *library;

static void *entry(const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    return found;
}

#define CALL(name, types, ...)                                                                              \
    do {                                                                                                    \
        int code = ((int(*) types)entry(name))(__VA_ARGS__);                                                \
        if (code != 0) {                                                                                    \
            fprintf(stderr, "%s: %d\n", name, code);                                                        \
            exit(1);                                                                                        \
        }                                                                                                   \
    } while (0)

typedef unsigned long long pointer;

static int run(int ordinal)
{
    static float a[N], b[N], c[N];
    pointer da, db, dc;
    char name[128];
    int device;
    void *context, *module, *function;

    CALL("cuDeviceGet", (int *, int), &device, ordinal);
    CALL("cuDeviceGetName", (char *, int, int), name, sizeof(name), device);
    CALL("cuDevicePrimaryCtxRetain", (void **, int), &context, device);
    CALL("cuCtxSetCurrent", (void *), context);
    CALL("cuModuleLoadData", (void **, const void *), &module, PTX);
    CALL("cuModuleGetFunction", (void **, void *, const char *), &function, module, "add");
    for (int i = 0; i < N; i++) {
        a[i] = (float)i;
        b[i] = (float)(2 * i);
    }
    CALL("cuMemAlloc_v2", (pointer *, size_t), &da, sizeof(a));
    CALL("cuMemAlloc_v2", (pointer *, size_t), &db, sizeof(b));
    CALL("cuMemAlloc_v2", (pointer *, size_t), &dc, sizeof(c));
    CALL("cuMemcpyHtoD_v2", (pointer, const void *, size_t), da, a, sizeof(a));
    CALL("cuMemcpyHtoD_v2", (pointer, const void *, size_t), db, b, sizeof(b));
    void *parameters[] = {&da, &db, &dc};
    CALL("cuLaunchKernel",
         (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
          void **),
         function, N / 256, 1, 1, 256, 1, 1, 0, NULL, parameters, NULL);
    CALL("cuMemcpyDtoH_v2", (void *, pointer, size_t), c, dc, sizeof(c));
    for (int i = 0; i < N; i++)
        if (c[i] != (float)(3 * i))
            return 1;
    printf("%d %s: sums are right\n", ordinal, name);
    return 0;
}

int main(void)
{
    int count = 0, wrong = 0;

    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    CALL("cuInit", (unsigned), 0);
    CALL("cuDeviceGetCount", (int *), &count);
    for (int i = 0; i < count; i++)
        wrong |= run(i);
    return wrong || count == 0;
}
