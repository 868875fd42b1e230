/* What allocations take, measured from the driver's own figures; and what is refused. */
#include "simdriver_test.h"

#include <stdint.h>

static size_t take(size_t count, size_t size, CUdeviceptr *out)
{
    size_t before = used_bytes();
    for (size_t i = 0; i < count; i++)
        OK(cuMemAlloc_v2(&out[i], size));
    return used_bytes() - before;
}

static void give(size_t count, CUdeviceptr *addresses)
{
    for (size_t i = 0; i < count; i++)
        OK(cuMemFree_v2(addresses[i]));
}

/* The figures of an H100 with driver 580, from outside. */
static void allocations_take_what_they_take_on_hardware(void)
{
    static const struct {
        size_t count, size, taken;
    } rows[] = {
        {100, 1024, 2 * MIB},
        {10, 512 * 1024, 6 * MIB},
        {10, MIB, 10 * MIB},
        {1, MIB + 1, 2 * MIB},
        {100, 2202010, 400 * MIB}, /* 2.1 MiB */
        {1, 1024 * MIB + 1, 1026 * MIB},
    };
    CUdeviceptr addresses[100];
    use_device();
    size_t before = used_bytes();
    CHECK(before == 518 * MIB);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        CHECK(take(rows[i].count, rows[i].size, addresses) == rows[i].taken);
        give(rows[i].count, addresses);
        CHECK(used_bytes() == before);
    }
}

static void bad_frees_are_refused(void)
{
    CUdeviceptr address;
    int local;
    use_device();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(&address, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(NULL, 1));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&address, SIZE_MAX));
    OK(cuMemAlloc_v2(&address, 4096));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(address + 256));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2((CUdeviceptr)(uintptr_t)&local));
    OK(cuMemFree_v2(address));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(address));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemGetInfo_v2(NULL, NULL));
    CHECK(used_bytes() == 518 * MIB);
}

static void memory_runs_out(void)
{
    CUdeviceptr addresses[2000], last;
    size_t count = 0, free_bytes, total;
    CUresult result;
    use_device();
    while ((result = cuMemAlloc_v2(&addresses[count], 64 * MIB)) == CUDA_SUCCESS)
        count++;
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, result);
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    CHECK(free_bytes < 64 * MIB && count == (total - 518 * MIB) / (64 * MIB));
    OK(cuMemAlloc_v2(&addresses[count], free_bytes));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&last, 1));
    give(count + 1, addresses);
    CHECK(used_bytes() == 518 * MIB);
}

static void ranges_are_known(void)
{
    CUdeviceptr address, base;
    size_t size, pitch;
    use_device();
    OK(cuMemAllocPitch_v2(&address, &pitch, 1, 1000, 4));
    CHECK(pitch == 512);
    OK(cuMemGetAddressRange_v2(&base, &size, address + 5000));
    CHECK(base == address && size == 512000);
    EXPECT(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &size, 16));
    OK(cuMemFree_v2(address));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocPitch_v2(&address, &pitch, SIZE_MAX, 2, 4));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocPitch_v2(&address, &pitch, 1 << 20, SIZE_MAX / 4, 4));
}

/* Fragments of many sizes end in the figure that they began with. */
static void random_sizes_balance(void)
{
    CUdeviceptr addresses[256] = {0};
    unsigned int seed = 1;
    use_device();
    for (int round = 0; round < 20000; round++) {
        seed = seed * 1664525 + 1013904223;
        size_t at = seed >> 24, size = (seed >> 4) % (5 * MIB) + 1;
        if (addresses[at]) {
            OK(cuMemFree_v2(addresses[at]));
            addresses[at] = 0;
        } else {
            OK(cuMemAlloc_v2(&addresses[at], size));
        }
    }
    for (size_t i = 0; i < 256; i++)
        if (addresses[i])
            OK(cuMemFree_v2(addresses[i]));
    CHECK(used_bytes() == 518 * MIB);
}

static void host_memory_is_not_charged(void)
{
    void *pinned;
    static char own[4096];
    unsigned int type;
    use_device();
    OK(cuMemHostAlloc(&pinned, 4096 * MIB, 0));
    OK(cuMemHostRegister_v2(own, sizeof(own), 0));
    EXPECT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister_v2(own + 100, 10, 0));
    CHECK(used_bytes() == 518 * MIB);
    OK(cuPointerGetAttribute(&type, 2, (CUdeviceptr)(uintptr_t)pinned));
    CHECK(type == CU_MEMORYTYPE_HOST);
    OK(cuMemHostUnregister(own));
    EXPECT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(own));
    OK(cuMemFreeHost(pinned));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(pinned));
}

/* Managed memory counts for the device once it is there, and may exceed it. */
static void managed_memory_moves(void)
{
    CUdeviceptr address;
    CUmemLocation device = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, host = {CU_MEM_LOCATION_TYPE_HOST, 0};
    unsigned char managed;
    use_device();
    OK(cuMemAllocManaged(&address, 200 * MIB, CU_MEM_ATTACH_GLOBAL));
    CHECK(used_bytes() == 518 * MIB);
    OK(cuPointerGetAttribute(&managed, 8, address));
    CHECK(managed);
    *(int *)(uintptr_t)address = 42;
    OK(cuMemPrefetchAsync_v2(address, 200 * MIB, device, 0, NULL));
    CHECK(used_bytes() == 718 * MIB);
    OK(cuMemPrefetchAsync_v2(address, 200 * MIB, host, 0, NULL));
    CHECK(used_bytes() == 518 * MIB);
    OK(cuMemsetD8_v2(address + 4, 7, 4));
    OK(cuCtxSynchronize());
    CHECK(used_bytes() == 718 * MIB && *(int *)(uintptr_t)address == 42);
    OK(cuMemFree_v2(address));
    CHECK(used_bytes() == 518 * MIB);
}

static uint64_t pool_value(CUmemoryPool pool, int attribute)
{
    uint64_t value;
    OK(cuMemPoolGetAttribute(pool, attribute, &value));
    return value;
}

static void pools_reserve_in_steps(void)
{
    CUdeviceptr addresses[100];
    CUmemoryPool pool;
    uint64_t forever = UINT64_MAX;
    use_device();
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemAllocAsync(&addresses[0], 1000, NULL));
    CHECK(used_bytes() == 550 * MIB && pool_value(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 32 * MIB);
    OK(cuMemFreeAsync(addresses[0], NULL));
    OK(cuCtxSynchronize());
    CHECK(used_bytes() == 518 * MIB);
    for (int i = 0; i < 100; i++)
        OK(cuMemAllocAsync(&addresses[i], 2202010, NULL));
    CHECK(used_bytes() == (518 + 224) * MIB);
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &forever));
    for (int i = 0; i < 100; i++)
        OK(cuMemFreeAsync(addresses[i], NULL));
    OK(cuCtxSynchronize());
    CHECK(used_bytes() == (518 + 224) * MIB && pool_value(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
    OK(cuMemPoolTrimTo(pool, 0));
    CHECK(used_bytes() == 518 * MIB);
    CHECK(pool_value(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 224 * MIB);
}

/* Freed in a stream, memory serves its next allocation at once. */
static void pools_use_memory_again(void)
{
    CUdeviceptr address;
    CUmemoryPool pool;
    use_device();
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    for (int i = 0; i < 1000; i++) {
        OK(cuMemAllocAsync(&address, 64 * MIB, NULL));
        OK(cuMemFreeAsync(address, NULL));
    }
    CHECK(pool_value(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 64 * MIB);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(address, NULL));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&address, 200000 * MIB, NULL));
    OK(cuMemAllocAsync(&address, 64 * MIB, NULL));
    OK(cuMemFree_v2(address));
    OK(cuCtxSynchronize());
    CHECK(used_bytes() == 518 * MIB);
}

static void a_pool_may_end_before_its_memory(void)
{
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                 .maxSize = 64 * MIB};
    CUmemoryPool pool;
    CUdeviceptr one, other;
    use_device();
    OK(cuMemPoolCreate(&pool, &properties));
    OK(cuMemAllocFromPoolAsync(&one, 40 * MIB, pool, NULL));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&other, 40 * MIB, pool, NULL));
    OK(cuMemPoolDestroy(pool));
    OK(cuMemFreeAsync(one, NULL));
    OK(cuCtxSynchronize());
    CHECK(used_bytes() == 518 * MIB);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy(pool));
}

static void mapped_memory_lives_with_its_last_reference(void)
{
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_READWRITE};
    CUmemGenericAllocationHandle one, other, again;
    CUdeviceptr address;
    char text[16];
    use_device();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&one, MIB, &properties, 0));
    OK(cuMemCreate(&one, 2 * MIB, &properties, 0));
    OK(cuMemCreate(&other, 4 * MIB, &properties, 0));
    CHECK(used_bytes() == 524 * MIB); /* at once, mapped or not */
    OK(cuMemAddressReserve(&address, 8 * MIB, 0, 0, 0));
    OK(cuMemMap(address, 2 * MIB, 0, one, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMap(address, 2 * MIB, 0, other, 0));
    OK(cuMemMap(address + 2 * MIB, 4 * MIB, 0, other, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(address, "no access yet", 8));
    OK(cuMemSetAccess(address, 6 * MIB, &access, 1));
    /* Across the seam. */
    OK(cuMemcpyHtoD_v2(address + 2 * MIB - 4, "two halves", 11));
    OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)address));
    CHECK(again == one);
    OK(cuMemRelease(one));
    OK(cuMemRelease(one));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemRelease(one));
    OK(cuMemRelease(other));
    CHECK(used_bytes() == 524 * MIB);
    OK(cuMemcpyDtoH_v2(text, address + 2 * MIB - 4, 11));
    CHECK(strcmp(text, "two halves") == 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(address, MIB));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(address, 8 * MIB));
    OK(cuMemUnmap(address, 2 * MIB));
    CHECK(used_bytes() == 522 * MIB);
    OK(cuMemUnmap(address + 2 * MIB, 4 * MIB));
    CHECK(used_bytes() == 518 * MIB);
    OK(cuMemAddressFree(address, 8 * MIB));
}

static void memory_of_the_other_device_is_charged_there(void)
{
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
    CUmemGenericAllocationHandle handle;
    CUcontext other;
    use_device();
    OK(cuMemCreate(&handle, 100 * MIB, &properties, 0));
    CHECK(used_bytes() == 518 * MIB);
    OK(cuCtxCreate_v2(&other, 0, 1));
    CHECK(used_bytes() == 618 * MIB);
    properties.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
    OK(cuMemCreate(&handle, 100 * MIB, &properties, 0));
    CHECK(used_bytes() == 618 * MIB);
}

static void a_context_takes_its_memory_with_it(void)
{
    CUcontext context;
    CUdeviceptr address;
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR shape = {1024, 1024, 0x20, 4};
    use_device();
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuMemAlloc_v2(&address, 100 * MIB));
    OK(cuArrayCreate_v2(&array, &shape));
    CHECK(used_bytes() == (518 * 2 + 100 + 16) * MIB);
    OK(cuCtxDestroy_v2(context));
    use_device();
    CHECK(used_bytes() == 518 * MIB);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(address));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(array));
}

const struct test memory_tests[] = {
    {"allocations_take_what_they_take_on_hardware", allocations_take_what_they_take_on_hardware},
    {"bad_frees_are_refused", bad_frees_are_refused},
    {"memory_runs_out", memory_runs_out},
    {"ranges_are_known", ranges_are_known},
    {"random_sizes_balance", random_sizes_balance},
    {"host_memory_is_not_charged", host_memory_is_not_charged},
    {"managed_memory_moves", managed_memory_moves},
    {"pools_reserve_in_steps", pools_reserve_in_steps},
    {"pools_use_memory_again", pools_use_memory_again},
    {"a_pool_may_end_before_its_memory", a_pool_may_end_before_its_memory},
    {"mapped_memory_lives_with_its_last_reference", mapped_memory_lives_with_its_last_reference},
    {"memory_of_the_other_device_is_charged_there", memory_of_the_other_device_is_charged_there},
    {"a_context_takes_its_memory_with_it", a_context_takes_its_memory_with_it},
    {NULL, NULL},
};
