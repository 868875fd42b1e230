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

static void settings_have_widths(void)
{
    unsigned char bytes[64];
    CUdeviceptr address;
    size_t pitch;
    use_device();
    OK(cuMemAlloc_v2(&address, 1024));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2(address + 2, 0, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(address, 0, 1025));
    OK(cuMemsetD8_v2(address, 1, 1024));
    CUdeviceptr rows;
    OK(cuMemAllocPitch_v2(&rows, &pitch, 16, 4, 4));
    OK(cuMemsetD8_v2(rows, 9, pitch * 3 + 16));
    OK(cuMemsetD2D8_v2(rows, pitch, 5, 16, 4));
    OK(cuMemcpyDtoH_v2(bytes, rows + pitch, 32));
    CHECK(bytes[0] == 5 && bytes[15] == 5 && bytes[16] == 9);
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

static void planes_are_copied_row_by_row(void)
{
    unsigned char from[8][16], to[8][16] = {{0}};
    CUdeviceptr address;
    size_t pitch;
    use_device();
    for (int i = 0; i < 128; i++)
        from[i / 16][i % 16] = (unsigned char)i;
    OK(cuMemAllocPitch_v2(&address, &pitch, 16, 8, 4));
    CUDA_MEMCPY2D in = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                        .srcHost = from,
                        .srcPitch = 16,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                        .dstDevice = address,
                        .dstPitch = pitch,
                        .WidthInBytes = 16,
                        .Height = 8};
    OK(cuMemcpy2D_v2(&in));
    CUDA_MEMCPY2D out = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                         .srcDevice = address,
                         .srcPitch = pitch,
                         .srcXInBytes = 4,
                         .srcY = 2,
                         .dstMemoryType = CU_MEMORYTYPE_HOST,
                         .dstHost = to,
                         .dstPitch = 16,
                         .WidthInBytes = 8,
                         .Height = 3};
    OK(cuMemcpy2D_v2(&out));
    CHECK(to[0][0] == 36 && to[0][7] == 43 && to[0][8] == 0 && to[2][0] == 68 && to[3][0] == 0);
    out.Height = 7; /* would leave the allocation */
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(&out));
    out.Height = SIZE_MAX;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(&out));
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

static void batches_and_views(void)
{
    uint32_t words[2] = {1, 2}, back[2] = {0};
    CUdeviceptr one, other;
    unsigned char resource[144] = {7}, texture[104] = {8}, got[144];
    unsigned long long object;
    use_device();
    OK(cuMemAlloc_v2(&one, 4));
    OK(cuMemAlloc_v2(&other, 4));
    CUdeviceptr host[] = {(CUdeviceptr)(uintptr_t)&words[0], (CUdeviceptr)(uintptr_t)&words[1]};
    size_t sizes[] = {4, 4}, failed;
    OK(cuMemcpyBatchAsync_v2((CUdeviceptr[]){one, other}, host, sizes, 2, NULL, NULL, 0, NULL));
    OK(cuMemcpyDtoH_v2(&back[0], one, 4));
    OK(cuMemcpyDtoH_v2(&back[1], other, 4));
    CHECK(back[0] == 1 && back[1] == 2);
    sizes[1] = 1000;
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuMemcpyBatchAsync((CUdeviceptr[]){one, other}, host, sizes, 2, NULL, NULL, 0, &failed, NULL));
    CHECK(failed == 1);
    OK(cuTexObjectCreate(&object, resource, texture, NULL));
    OK(cuTexObjectGetResourceDesc(got, object));
    CHECK(got[0] == 7);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuSurfObjectDestroy(object));
    OK(cuTexObjectDestroy(object));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuTexObjectDestroy(object));
}

const struct test copy_tests[] = {
    {"pageable_memory_is_free_again", pageable_memory_is_free_again},
    {"settings_have_widths", settings_have_widths},
    {"long_settings_are_whole", long_settings_are_whole},
    {"planes_are_copied_row_by_row", planes_are_copied_row_by_row},
    {"arrays_keep_elements", arrays_keep_elements},
    {"batches_and_views", batches_and_views},
    {NULL, NULL},
};
