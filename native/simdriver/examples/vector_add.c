/* Adds two vectors on the first CUDA device and checks the sum. Needs nothing but a C library: the driver is opened
 * as programs in containers do it, by its name. Usage: vector_add [ELEMENTS] */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* PTX that any driver since CUDA 8 compiles; a simulated one knows the kernel by its name. */
static const char kernel_image[] =
    ".version 5.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry vector_add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)\n"
    "{\n"
    "    .reg .pred %p<2>; .reg .f32 %f<4>; .reg .b32 %r<6>; .reg .b64 %d<8>;\n"
    "    ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b]; ld.param.u64 %d3, [c]; ld.param.u32 %r1, [n];\n"
    "    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;\n"
    "    mad.lo.s32 %r5, %r2, %r3, %r4;\n"
    "    setp.ge.s32 %p1, %r5, %r1;\n"
    "    @%p1 bra done;\n"
    "    cvta.to.global.u64 %d1, %d1; cvta.to.global.u64 %d2, %d2; cvta.to.global.u64 %d3, %d3;\n"
    "    mul.wide.s32 %d4, %r5, 4;\n"
    "    add.s64 %d5, %d1, %d4; add.s64 %d6, %d2, %d4; add.s64 %d7, %d3, %d4;\n"
    "    ld.global.f32 %f1, [%d5]; ld.global.f32 %f2, [%d6];\n"
    "    add.f32 %f3, %f1, %f2;\n"
    "    st.global.f32 [%d7], %f3;\n"
    "done:\n"
    "    ret;\n"
    "}\n";

typedef int (*init_t)(unsigned int);
typedef int (*count_t)(int *);
typedef int (*get_t)(int *, int);
typedef int (*name_t)(char *, int, int);
typedef int (*retain_t)(void **, int);
typedef int (*current_t)(void *);
typedef int (*info_t)(size_t *, size_t *);
typedef int (*allocate_t)(uint64_t *, size_t);
typedef int (*to_device_t)(uint64_t, const void *, size_t);
typedef int (*to_host_t)(void *, uint64_t, size_t);
typedef int (*load_t)(void **, const void *);
typedef int (*function_t)(void **, void *, const char *);
typedef int (*launch_t)(void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                        unsigned int, unsigned int, void *, void **, void **);
typedef int (*synchronize_t)(void);
typedef int (*free_t)(uint64_t);
typedef int (*error_t_)(int, const char **);

static void *find(void *driver, const char *name)
{
    void *address = dlsym(driver, name);
    if (!address) {
        fprintf(stderr, "vector_add: libcuda.so.1 has no %s\n", name);
        exit(1);
    }
    return address;
}

static void check(void *driver, const char *what, int result)
{
    const char *text = "unknown error";
    if (result == 0)
        return;
    ((error_t_)find(driver, "cuGetErrorString"))(result, &text);
    fprintf(stderr, "vector_add: %s: %s (%d)\n", what, text, result);
    exit(1);
}

#define CALL(type, name, ...) check(driver, #name, ((type)find(driver, #name))(__VA_ARGS__))

int main(int argc, char **argv)
{
    int count = argc > 1 ? atoi(argv[1]) : 1 << 20, devices = 0, device = 0;
    size_t bytes = (size_t)(count > 0 ? count : 0) * sizeof(float), free_bytes = 0, total = 0;
    char device_name[256];
    void *context, *module, *function, *driver = dlopen("libcuda.so.1", RTLD_NOW);
    uint64_t a, b, c;
    if (!driver) {
        fprintf(stderr, "vector_add: %s\n", dlerror());
        return 1;
    }
    float *one = malloc(bytes), *other = malloc(bytes), *sum = calloc(1, bytes);
    if (count <= 0 || !one || !other || !sum) {
        fprintf(stderr, "vector_add: cannot make vectors of %d elements\n", count);
        return 1;
    }
    for (int i = 0; i < count; i++) {
        one[i] = (float)(i % 1000);
        other[i] = (float)(i % 7) * 0.5f;
    }
    CALL(init_t, cuInit, 0);
    CALL(count_t, cuDeviceGetCount, &devices);
    CALL(get_t, cuDeviceGet, &device, 0);
    CALL(name_t, cuDeviceGetName, device_name, sizeof(device_name), device);
    CALL(retain_t, cuDevicePrimaryCtxRetain, &context, device);
    CALL(current_t, cuCtxSetCurrent, context);
    CALL(allocate_t, cuMemAlloc_v2, &a, bytes);
    CALL(allocate_t, cuMemAlloc_v2, &b, bytes);
    CALL(allocate_t, cuMemAlloc_v2, &c, bytes);
    CALL(info_t, cuMemGetInfo_v2, &free_bytes, &total);
    printf("device 0 of %d: %s, %zu of %zu MiB free\n", devices, device_name, free_bytes >> 20, total >> 20);
    CALL(to_device_t, cuMemcpyHtoD_v2, a, one, bytes);
    CALL(to_device_t, cuMemcpyHtoD_v2, b, other, bytes);
    CALL(load_t, cuModuleLoadData, &module, kernel_image);
    CALL(function_t, cuModuleGetFunction, &function, module, "vector_add");
    CALL(launch_t, cuLaunchKernel, function, (unsigned int)(count + 255) / 256, 1, 1, 256, 1, 1, 0, NULL,
         (void *[]){&a, &b, &c, &count}, NULL);
    CALL(synchronize_t, cuCtxSynchronize);
    CALL(to_host_t, cuMemcpyDtoH_v2, sum, c, bytes);
    for (int i = 0; i < count; i++)
        if (sum[i] != one[i] + other[i]) {
            fprintf(stderr, "vector_add: element %d is %g, not %g\n", i, (double)sum[i],
                    (double)(one[i] + other[i]));
            return 1;
        }
    CALL(free_t, cuMemFree_v2, a);
    CALL(free_t, cuMemFree_v2, b);
    CALL(free_t, cuMemFree_v2, c);
    printf("%d elements added, all sums right\n", count);
    free(one);
    free(other);
    free(sum);
    return 0;
}
