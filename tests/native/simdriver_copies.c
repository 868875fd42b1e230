/* Copies and settings of memory: the bytes are real. */
#include "simdriver_test.h"

/* What was pageable when an asynchronous copy returned may change at once. */
static void pageable_memory_is_free_again(void)
{
    int value = 1, got = 0;
    CUdeviceptr address;
    CUstream stream;
    use_device();
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_v2(&address, sizeof(int)));
    launch_full(kernel("sim_spin_5ms"), stream, NULL);
    OK(cuMemcpyHtoDAsync_v2(address, &value, sizeof(value), stream));
    value = 2;
    OK(cuMemcpyDtoHAsync_v2(&got, address, sizeof(got), stream));
    CHECK(got == 1); /* a copy to pageable memory returns when it is done */
}

/* Of more than the simulated driver writes at once: all of it, and nothing behind it. */
static void long_settings_are_whole(void)
{
    enum { COUNT = 100003 };
    static unsigned short halves[COUNT + 1];
    static unsigned int words[COUNT + 1];
    CUdeviceptr address;
    use_device();
    OK(cuMemAlloc_v2(&address, sizeof(words)));
    OK(cuMemsetD8_v2(address, 9, sizeof(words)));
    OK(cuMemsetD32_v2(address, 0x01020304, COUNT));
    OK(cuMemcpyDtoH_v2(words, address, sizeof(words)));
    for (int i = 0; i < COUNT; i++)
        CHECK(words[i] == 0x01020304);
    CHECK(words[COUNT] == 0x09090909);
    OK(cuMemsetD8_v2(address, 9, sizeof(words)));
    OK(cuMemsetD16_v2(address, 0xabcd, COUNT));
    OK(cuMemcpyDtoH_v2(halves, address, sizeof(halves)));
    for (int i = 0; i < COUNT; i++)
        CHECK(halves[i] == 0xabcd);
    CHECK(halves[COUNT] == 0x0909);
}

static void arrays_keep_elements(void)
{
    float row[64], back[64] = {0};
    CUarray array, cube;
    CUDA_ARRAY_DESCRIPTOR line = {64, 0, 0x20, 1};
    CUDA_ARRAY3D_DESCRIPTOR block = {.Width = 16, .Height = 4, .Depth = 2, .Format = 0x20, .NumChannels = 1};
    use_device();
    for (int i = 0; i < 64; i++)
        row[i] = (float)i;
    OK(cuArrayCreate_v2(&array, &line));
    OK(cuMemcpyHtoA_v2(array, 0, row, sizeof(row)));
    OK(cuMemcpyAtoH_v2(back, array, 32 * sizeof(float), 32 * sizeof(float)));
    CHECK(back[0] == 32.0f && back[31] == 63.0f);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyAtoH_v2(back, array, 33 * sizeof(float), 32 * sizeof(float)));
    OK(cuArray3DCreate_v2(&cube, &block));
    CUDA_MEMCPY3D in = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                        .srcHost = row,
                        .srcPitch = 32,
                        .srcHeight = 2,
                        .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                        .dstArray = cube,
                        .dstXInBytes = 8,
                        .dstY = 1,
                        .WidthInBytes = 32,
                        .Height = 2,
                        .Depth = 2};
    OK(cuMemcpy3D_v2(&in));
    CUDA_MEMCPY3D out = {.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                         .srcArray = cube,
                         .srcXInBytes = 8,
                         .srcY = 2,
                         .srcZ = 1,
                         .dstMemoryType = CU_MEMORYTYPE_HOST,
                         .dstHost = back,
                         .dstPitch = 32,
                         .WidthInBytes = 32,
                         .Height = 1,
                         .Depth = 1};
    OK(cuMemcpy3D_v2(&out));
    CHECK(back[0] == 24.0f && back[7] == 31.0f);
    OK(cuArrayDestroy(array));
    OK(cuArrayDestroy(cube));
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuArrayCreate_v2(&array, &(CUDA_ARRAY_DESCRIPTOR){64, 64, 0x91, 1}));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuArrayCreate_v2(&array, &(CUDA_ARRAY_DESCRIPTOR){0, 64, 0x20, 1}));
}

const struct test copy_tests[] = {
    {"pageable_memory_is_free_again", pageable_memory_is_free_again},
    {"long_settings_are_whole", long_settings_are_whole},
    {"arrays_keep_elements", arrays_keep_elements},
    {NULL, NULL},
};
