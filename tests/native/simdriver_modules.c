/* Modules, their kernels, and launching these. */
#include "simdriver_test.h"

static const char image[] =
    "// a comment with .entry nothing\n"
    ".version 8.0\n.target sm_90\n.address_size 64\n"
    ".global .align 4 .b8 table[1048577];\n"
    ".visible .global .u32 flag;\n"
    "/* .entry nothing2 */\n"
    ".func (.param .b32 out) helper(.param .b32 in)\n{ .local .align 4 .b8 spare[64]; { } ret; }\n"
    ".visible .entry plain()\n{ ret; }\n"
    ".visible .entry shaped(.param .u32 a, .param .align 8 .b8 b[24], .param .u64 c)\n"
    ".maxntid 128, 1, 1\n"
    "{\n .local .align 16 .b8 __local_depot0[16384];\n ret;\n}\n";

static void text_images_are_read(void)
{
    CUmodule module;
    CUfunction function;
    CUdeviceptr address;
    size_t size, offset;
    unsigned int count;
    int local;
    use_device();
    size_t before = used_bytes();
    OK(cuModuleLoadData(&module, image));
    CHECK(used_bytes() == before + 4 * MIB); /* a large variable, and a chunk for the small one */
    OK(cuModuleGetFunctionCount(&count, module));
    CHECK(count == 2);
    OK(cuModuleGetFunction(&function, module, "shaped"));
    EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&function, module, "nothing"));
    EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&function, module, "helper"));
    OK(cuModuleGetFunction(&function, module, "shaped"));
    OK(cuFuncGetParamInfo(function, 1, &offset, &size));
    CHECK(offset == 8 && size == 24);
    OK(cuFuncGetParamInfo(function, 2, &offset, &size));
    CHECK(offset == 32 && size == 8);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo(function, 3, &offset, &size));
    OK(cuFuncGetAttribute(&local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function));
    CHECK(local == 16384);
    OK(cuModuleGetGlobal_v2(&address, &size, module, "table"));
    CHECK(size == 1048577);
    OK(cuMemsetD8_v2(address, 1, size));
    OK(cuModuleGetGlobal_v2(&address, &size, module, "flag"));
    CHECK(size == 4);
    EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal_v2(&address, &size, module, "tabl"));
    OK(cuModuleUnload(module));
    CHECK(used_bytes() == before);
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuModuleGetFunction(&function, module, "plain"));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuModuleLoadData(&module, NULL));
}

static void vectors_are_added(void)
{
    enum { COUNT = 1000 };
    float a[COUNT], b[COUNT], c[COUNT];
    int count = COUNT;
    CUdeviceptr in, with, out;
    use_device();
    for (int i = 0; i < COUNT; i++) {
        a[i] = (float)i;
        b[i] = 0.5f;
    }
    OK(cuMemAlloc_v2(&in, sizeof(a)));
    OK(cuMemAlloc_v2(&with, sizeof(b)));
    OK(cuMemAlloc_v2(&out, sizeof(c)));
    OK(cuMemcpyHtoD_v2(in, a, sizeof(a)));
    OK(cuMemcpyHtoD_v2(with, b, sizeof(b)));
    struct {
        CUdeviceptr in, with, out;
        int count;
    } packed = {in, with, out, COUNT};
    size_t size = sizeof(packed);
    void *extra[] = {(void *)1, &packed, (void *)2, &size, (void *)0};
    OK(cuLaunchKernel(kernel("_Z10vector_addPKfS0_Pfi"), 4, 1, 1, 256, 1, 1, 0, NULL, NULL, extra));
    OK(cuMemcpyDtoH_v2(c, out, sizeof(c)));
    CHECK(c[0] == 0.5f && c[999] == 999.5f);
    CUlaunchAttribute attributes[1] = {{.id = 2, .value.cooperative = 1}};
    CUlaunchConfig config = {4, 1, 1, 256, 1, 1, 0, NULL, attributes, 1};
    OK(cuMemsetD8_v2(out, 0, sizeof(c)));
    OK(cuLaunchKernelEx(&config, kernel("vector_add"), (void *[]){&in, &with, &out, &count}, NULL));
    OK(cuMemcpyDtoH_v2(c, out, sizeof(c)));
    CHECK(c[999] == 999.5f);
}

/* As on hardware, an access outside of memory ends the context's usefulness. */
static void a_bad_address_breaks_the_context(void)
{
    CUdeviceptr small;
    int count = 1000;
    use_device();
    OK(cuMemAlloc_v2(&small, 4));
    launch_small(kernel("vector_add"), NULL, (void *[]){&small, &small, &small, &count});
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemFree_v2(small));
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(NULL));
}

static void bad_launches_are_refused(void)
{
    use_device();
    CUfunction spin = kernel("sim_spin_1us");
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(spin, 0, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(spin, 1, 1, 1, 1025, 1, 1, 0, NULL, NULL, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(spin, 1, 1, 1, 32, 33, 1, 0, NULL, NULL, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(spin, 1, 65536, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 1 << 20, NULL, NULL, NULL));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));

    OK(cuLaunchKernel(spin, 2147483647, 1, 1, 1024, 1, 1, 0, NULL, NULL, NULL));
    OK(cuLaunchCooperativeKernel(spin, 132 * 2, 1, 1, 1024, 1, 1, 0, NULL, NULL));
    EXPECT(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
           cuLaunchCooperativeKernel(spin, 132 * 2 + 1, 1, 1, 1024, 1, 1, 0, NULL, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuLaunchKernel(kernel("vector_add"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuCtxSynchronize());
}

static void the_linker_joins_texts(void)
{
    static char one[] = ".visible .entry one() { ret; }", two[] = ".visible .entry two() { ret; }";
    CUlinkState state;
    CUmodule module;
    CUfunction function;
    void *linked;
    size_t size;
    use_device();
    OK(cuLinkCreate_v2(0, NULL, NULL, &state));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLinkComplete(state, &linked, &size));
    OK(cuLinkAddData_v2(state, 1, one, sizeof(one), "one", 0, NULL, NULL));
    OK(cuLinkAddData_v2(state, 1, two, sizeof(two), "two", 0, NULL, NULL));
    OK(cuLinkComplete(state, &linked, &size));
    OK(cuModuleLoadData(&module, linked));
    OK(cuModuleGetFunction(&function, module, "one"));
    OK(cuModuleGetFunction(&function, module, "two"));
    OK(cuLinkDestroy(state));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuLinkDestroy(state));
}

const struct test module_tests[] = {
    {"text_images_are_read", text_images_are_read},
    {"vectors_are_added", vectors_are_added},
    {"a_bad_address_breaks_the_context", a_bad_address_breaks_the_context},
    {"bad_launches_are_refused", bad_launches_are_refused},
    {"the_linker_joins_texts", the_linker_joins_texts},
    {NULL, NULL},
};
