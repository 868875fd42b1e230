/* What allocations take, measured from the driver's own figures; and what is refused. */
#include "simdriver_test.h"

#include <stdint.h>

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

const struct test memory_tests[] = {
    {"ranges_are_known", ranges_are_known},
    {"host_memory_is_not_charged", host_memory_is_not_charged},
    {"managed_memory_moves", managed_memory_moves},
    {"mapped_memory_lives_with_its_last_reference", mapped_memory_lives_with_its_last_reference},
    {NULL, NULL},
};
