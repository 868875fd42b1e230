/* Host memory that the device can reach, and managed memory. */
#include "engine.h"
#include "memory.h"
#include "stream.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static CUresult map_pages(struct context *context, size_t size, enum memory_kind kind, unsigned int flags,
                          struct memory **out)
{
    CU_ARGUMENT(size);
    CU_REQUIRE(size <= UINT64_C(1) << 46, CUDA_ERROR_OUT_OF_MEMORY);
    struct memory *memory = memory_new(context, kind, size);
    CU_REQUIRE(memory, CUDA_ERROR_OUT_OF_MEMORY);
    memory->flags = flags;
    memory->taken = round_up(size, (uint64_t)sysconf(_SC_PAGESIZE));
    void *at = mmap(NULL, memory->taken, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                    -1, 0);
    if (at == MAP_FAILED) {
        free(memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->range.base = (uint64_t)(uintptr_t)at;
    memory_enter(memory);
    *out = memory;
    return CUDA_SUCCESS;
}

static CUresult allocate_host(void **out, size_t size, unsigned int flags)
{
    struct memory *memory;
    CU_CONTEXT(context);
    CU_ARGUMENT(out && !(flags & ~(unsigned int)CU_MEMHOSTALLOC_ALL));
    CU_TRY(map_pages(context, size, MEMORY_HOST, flags, &memory));
    *out = (void *)(uintptr_t)memory->range.base;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemHostAlloc, (void **out, size_t size, unsigned int flags), allocate_host(out, size, flags))
CU_EXPORT(cuMemAllocHost_v2, (void **out, size_t size), allocate_host(out, size, 0))
CU_EXPORT(cuMemAllocHost, (void **out, unsigned int size), allocate_host(out, size, 0))

static CUresult free_host(void *address)
{
    CU_CONTEXT(context);
    struct memory *memory = memory_find((uint64_t)(uintptr_t)address);
    CU_ARGUMENT(memory && memory->kind == MEMORY_HOST && memory->range.base == (uint64_t)(uintptr_t)address);
    engine_wait_device(memory->device);
    memory_release(memory);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemFreeHost, (void *address), free_host(address))

static CUresult register_host(void *address, size_t size, unsigned int flags)
{
    uint64_t base = (uint64_t)(uintptr_t)address;
    CU_CONTEXT(context);
    CU_ARGUMENT(address && size && size <= UINT64_MAX - base && !(flags & ~15u));
    const struct range *after = range_from(&driver()->memory, base);
    CU_REQUIRE(!memory_find(base) && !(after && after->base < base + size),
               CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    struct memory *memory = memory_new(context, MEMORY_REGISTERED, size);
    CU_REQUIRE(memory, CUDA_ERROR_OUT_OF_MEMORY);
    memory->range.base = base;
    memory->flags = flags;
    memory_enter(memory);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemHostRegister_v2, (void *address, size_t size, unsigned int flags),
          register_host(address, size, flags))
CU_EXPORT(cuMemHostRegister, (void *address, size_t size, unsigned int flags),
          register_host(address, size, flags))

static CUresult unregister_host(void *address)
{
    CU_CONTEXT(context);
    struct memory *memory = memory_find((uint64_t)(uintptr_t)address);
    CU_REQUIRE(memory && memory->kind == MEMORY_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    CU_ARGUMENT(memory->range.base == (uint64_t)(uintptr_t)address);
    memory_release(memory);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemHostUnregister, (void *address), unregister_host(address))

static struct memory *find_host(const void *address)
{
    struct memory *memory = memory_find((uint64_t)(uintptr_t)address);
    return memory && (memory->kind == MEMORY_HOST || memory->kind == MEMORY_REGISTERED) ? memory : NULL;
}

/* Host and device share addresses. */
static CUresult host_pointer(CUdeviceptr *out, const void *address, unsigned int flags)
{
    CU_CONTEXT(context);
    CU_ARGUMENT(out && flags == 0 && find_host(address));
    *out = (uint64_t)(uintptr_t)address;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemHostGetDevicePointer_v2, (CUdeviceptr * out, void *address, unsigned int flags),
          host_pointer(out, address, flags))

static CUresult host_flags(unsigned int *out, const void *address)
{
    CU_CONTEXT(context);
    const struct memory *memory = find_host(address);
    CU_ARGUMENT(out && memory && memory->kind == MEMORY_HOST);
    *out = memory->flags;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemHostGetFlags, (unsigned int *out, void *address), host_flags(out, address))

static CUresult allocate_managed(CUdeviceptr *out, size_t size, unsigned int flags)
{
    struct memory *memory;
    CU_CONTEXT(context);
    CU_ARGUMENT(out && (flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST));
    CU_TRY(map_pages(context, size, MEMORY_MANAGED, flags, &memory));
    *out = memory->range.base;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemAllocManaged, (CUdeviceptr * out, size_t size, unsigned int flags),
          allocate_managed(out, size, flags))

/* Moves managed memory to a device, or with `device` NULL to the host. */
static CUresult prefetch(CUdeviceptr address, size_t size, struct device *device, struct stream *stream)
{
    struct memory *memory = memory_find(address);
    CU_REQUIRE(stream, CUDA_ERROR_INVALID_HANDLE);
    CU_ARGUMENT(memory && size && memory->kind == MEMORY_MANAGED);
    CU_ARGUMENT(size <= memory->range.size - (address - memory->range.base));
    if (memory->resident && (!device || device != memory->device))
        ledger_managed(memory->device, -(int64_t)memory->taken);
    if (device && !(memory->resident && device == memory->device))
        ledger_managed(device, (int64_t)memory->taken);
    if (device)
        memory->device = device;
    memory->resident = device != NULL;
    return CUDA_SUCCESS;
}

static CUresult prefetch_to(CUdeviceptr address, size_t size, CUdevice ordinal, CUstream stream)
{
    CU_CONTEXT(context);
    struct device *device = ordinal == -1 ? NULL : device_at(ordinal);
    CU_REQUIRE(ordinal == -1 || device, CUDA_ERROR_INVALID_DEVICE);
    return prefetch(address, size, device, stream_of(stream, context));
}

CU_TWINS(_ptsz, cuMemPrefetchAsync, (CUdeviceptr address, size_t size, CUdevice device, CUstream stream),
         prefetch_to(address, size, device, OWN(stream)))

/* Version 2 names a location by value, and flags, where the first had a device. */
static CUresult prefetch_at(CUdeviceptr address, size_t size, CUmemLocation to, unsigned int flags,
                            CUstream stream)
{
    CU_ARGUMENT(flags == 0 && to.type >= CU_MEM_LOCATION_TYPE_DEVICE && to.type <= 4);
    return prefetch_to(address, size, to.type == CU_MEM_LOCATION_TYPE_DEVICE ? to.id : -1, stream);
}

CU_TWINS(_ptsz, cuMemPrefetchAsync_v2,
         (CUdeviceptr address, size_t size, CUmemLocation to, unsigned int flags, CUstream stream),
         prefetch_at(address, size, to, flags, OWN(stream)))

/* Advice changes nothing that a program could notice here. */
static CUresult advise(CUdeviceptr address, size_t size, int advice)
{
    CU_CONTEXT(context);
    const struct memory *memory = memory_find(address);
    CU_ARGUMENT(memory && size && advice >= 1 && advice <= 6 && memory->kind == MEMORY_MANAGED);
    return CUDA_SUCCESS;
}

CU_API CUresult cuMemAdvise(CUdeviceptr address, size_t size, int advice, CUdevice device)
{
    CU_ARGUMENT(device >= -1);
    CU_CALL(advise(address, size, advice));
}

CU_API CUresult cuMemAdvise_v2(CUdeviceptr address, size_t size, int advice, CUmemLocation location)
{
    CU_ARGUMENT(location.type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT);
    CU_CALL(advise(address, size, advice));
}
