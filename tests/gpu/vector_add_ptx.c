/* Runs a kernel on each visible GPU through the driver API alone: the PTX is compiled by the driver itself, so the
 * compiler libraries must be there too. Prints a line for each GPU; exit 0 when every sum is right. */
#include "vgpu_driver.h"

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

static int run(int ordinal)
{
    static float a[N], b[N], c[N];
    pointer da, db, dc;
    char name[128];
    int device;
    void *module, *function;

    MUST("cuDeviceGet", (int *, int), &device, ordinal);
    MUST("cuDeviceGetName", (char *, int, int), name, sizeof(name), device);
    use_device(ordinal);
    MUST("cuModuleLoadData", (void **, const void *), &module, PTX);
    MUST("cuModuleGetFunction", (void **, void *, const char *), &function, module, "add");
    for (int i = 0; i < N; i++) {
        a[i] = (float)i;
        b[i] = (float)(2 * i);
    }
    MUST("cuMemAlloc_v2", (pointer *, size_t), &da, sizeof(a));
    MUST("cuMemAlloc_v2", (pointer *, size_t), &db, sizeof(b));
    MUST("cuMemAlloc_v2", (pointer *, size_t), &dc, sizeof(c));
    MUST("cuMemcpyHtoD_v2", (pointer, const void *, size_t), da, a, sizeof(a));
    MUST("cuMemcpyHtoD_v2", (pointer, const void *, size_t), db, b, sizeof(b));
    void *parameters[] = {&da, &db, &dc};
    MUST("cuLaunchKernel",
         (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
          void **),
         function, N / 256, 1, 1, 256, 1, 1, 0, NULL, parameters, NULL);
    MUST("cuMemcpyDtoH_v2", (void *, pointer, size_t), c, dc, sizeof(c));
    for (int i = 0; i < N; i++)
        if (c[i] != (float)(3 * i))
            return 1;
    printf("%d %s: sums are right\n", ordinal, name);
    return 0;
}

int main(void)
{
    int count = 0, wrong = 0;

    open_driver();
    MUST("cuInit", (unsigned), 0);
    MUST("cuDeviceGetCount", (int *), &count);
    for (int i = 0; i < count; i++)
        wrong |= run(i);
    return wrong || count == 0;
}
