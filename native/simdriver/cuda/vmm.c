/* Virtual memory management: addresses and memory apart. */
#include "vmm.h"

#include "engine.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LARGE = 64 << 20 };

struct vmm *vmm_of(CUmemGenericAllocationHandle handle)
{
    struct vmm *vmm = (struct vmm *)(uintptr_t)handle;
    return handle_is(vmm, KIND_VMM) ? vmm : NULL;
}

void vmm_free_if_unused(struct vmm *vmm)
{
    if (vmm->handles || vmm->mappings)
        return;
    if (vmm->address)
        space_give(vmm->device, vmm->address, vmm->size);
    if (vmm->fd >= 0)
        close(vmm->fd);
    if (vmm->export_id)
        ledger_drop(vmm->export_id);
    else if (vmm->device)
        ledger_refund(vmm->device, vmm->size);
    handle_free(vmm);
}

static CUresult place(struct vmm *vmm)
{
    if (vmm->device && vmm->properties.requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE)
        return space_take(vmm->device, vmm->size, &vmm->address);
    vmm->fd = memory_file("nvidia-sim-vmm", vmm->size + sizeof(struct vmm_trailer));
    return vmm->fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

static CUresult create(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *properties,
                       unsigned long long flags)
{
    CU_ARGUMENT(out && properties && flags == 0 && size && size % PAGE == 0);
    CU_ARGUMENT(properties->type == CU_MEM_ALLOCATION_TYPE_PINNED);
    CU_REQUIRE(properties->requestedHandleTypes <= CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
               CUDA_ERROR_NOT_SUPPORTED);
    bool on_device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    CU_ARGUMENT(on_device || (properties->location.type >= CU_MEM_LOCATION_TYPE_HOST &&
                              properties->location.type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT));
    struct device *device = on_device ? device_at(properties->location.id) : NULL;
    CU_REQUIRE(device || !on_device, CUDA_ERROR_INVALID_DEVICE);
    struct vmm *vmm = handle_new(KIND_VMM, sizeof(*vmm));
    CU_REQUIRE(vmm, CUDA_ERROR_OUT_OF_MEMORY);
    vmm->properties = *properties;
    vmm->size = size;
    vmm->fd = -1;
    CUresult result = device ? ledger_charge(device, size) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
        vmm->device = device;
        result = place(vmm);
    }
    if (result != CUDA_SUCCESS) {
        vmm_free_if_unused(vmm);
        return result;
    }
    vmm->handles = 1;
    *out = (uint64_t)(uintptr_t)vmm;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemCreate,
          (CUmemGenericAllocationHandle * out, size_t size, const CUmemAllocationProp *properties,
           unsigned long long flags),
          create(out, size, properties, flags))

/* The handle ends with the last release; the memory with the last mapping too. */
static CUresult release(CUmemGenericAllocationHandle handle)
{
    struct vmm *vmm = vmm_of(handle);
    CU_ARGUMENT(vmm);
    if (--vmm->handles == 0 && vmm->mappings)
        handle_forget(vmm);
    vmm_free_if_unused(vmm);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemRelease, (CUmemGenericAllocationHandle handle), release(handle))

static CUresult retain(CUmemGenericAllocationHandle *out, void *address)
{
    const struct memory *memory = memory_find((uint64_t)(uintptr_t)address);
    CU_ARGUMENT(out && memory && memory->kind == MEMORY_MAPPED);
    if (memory->vmm->handles == 0)
        CU_REQUIRE(handle_remember(memory->vmm, KIND_VMM), CUDA_ERROR_OUT_OF_MEMORY);
    memory->vmm->handles++;
    *out = (uint64_t)(uintptr_t)memory->vmm;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * out, void *address),
          retain(out, address))

static CUresult reserve(CUdeviceptr *out, size_t size, size_t align, CUdeviceptr hint,
                        unsigned long long flags)
{
    struct range *range = calloc(1, sizeof(*range));
    CU_REQUIRE(range, CUDA_ERROR_OUT_OF_MEMORY);
    size_t step = align > PAGE ? align : PAGE, room = size + step;
    void *at = MAP_FAILED;
    if (out && flags == 0 && size && size % PAGE == 0 && (align & (align - 1)) == 0 && room > size)
        at = mmap((void *)(uintptr_t)hint, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                  0);
    else
        room = 0;
    if (at == MAP_FAILED) {
        free(range);
        return room ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    }
    uint64_t base = round_up((uint64_t)(uintptr_t)at, step), end = (uint64_t)(uintptr_t)at + room;
    if (base > (uint64_t)(uintptr_t)at)
        munmap(at, base - (uint64_t)(uintptr_t)at);
    if (end > base + size)
        munmap((void *)(uintptr_t)(base + size), end - base - size);
    range->base = base;
    range->size = size;
    range_insert(&driver()->reserved, range);
    *out = base;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemAddressReserve,
          (CUdeviceptr * out, size_t size, size_t align, CUdeviceptr hint, unsigned long long flags),
          reserve(out, size, align, hint, flags))

/* The first mapping in a stretch of addresses, or NULL. */
static struct memory *mapping_in(uint64_t base, uint64_t size)
{
    struct memory *memory = memory_find(base);
    if (!memory)
        memory = (struct memory *)range_from(&driver()->memory, base);
    return memory && memory->range.base < base + size ? memory : NULL;
}

static CUresult free_address(CUdeviceptr base, size_t size)
{
    struct range *range = range_at(&driver()->reserved, base);
    CU_ARGUMENT(range && range->base == base && range->size == size && !mapping_in(base, size));
    range_remove(&driver()->reserved, range);
    free(range);
    munmap((void *)(uintptr_t)base, size);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemAddressFree, (CUdeviceptr base, size_t size), free_address(base, size))

/* Whether a stretch of addresses lies in one reservation. */
static bool is_reserved(uint64_t base, uint64_t size)
{
    const struct range *range = range_at(&driver()->reserved, base);
    return range && size <= range->size - (base - range->base);
}

static CUresult map(CUdeviceptr base, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                    unsigned long long flags)
{
    struct vmm *vmm = vmm_of(handle);
    CU_ARGUMENT(vmm && flags == 0 && size && size % PAGE == 0 && base % PAGE == 0 && offset % PAGE == 0);
    CU_ARGUMENT(offset <= vmm->size && size <= vmm->size - offset);
    CU_ARGUMENT(is_reserved(base, size) && !mapping_in(base, size));
    struct memory *memory = calloc(1, sizeof(*memory));
    CU_REQUIRE(memory, CUDA_ERROR_OUT_OF_MEMORY);
    int fd = vmm->address ? vmm->device->space.fd : vmm->fd;
    uint64_t from = vmm->address ? vmm->address - vmm->device->space.base + offset : offset;
    /* Unreadable until cuMemSetAccess, as on hardware. */
    if (mmap((void *)(uintptr_t)base, size, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, (off_t)from) ==
        MAP_FAILED) {
        free(memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *memory = (struct memory){.kind = MEMORY_MAPPED, .device = vmm->device, .vmm = vmm, .offset = offset};
    memory->range.base = base;
    memory->range.size = memory->taken = size;
    memory_enter(memory);
    vmm->mappings++;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemMap,
          (CUdeviceptr base, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
           unsigned long long flags),
          map(base, size, offset, handle, flags))

void vmm_unmapped(struct memory *memory)
{
    mmap((void *)(uintptr_t)memory->range.base, memory->range.size, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    memory->vmm->mappings--;
    vmm_free_if_unused(memory->vmm);
}

/* Only whole mappings, and no gaps between them. */
static bool is_mapped(uint64_t base, uint64_t size)
{
    for (uint64_t end = base + size; base < end;) {
        const struct memory *memory = memory_find(base);
        if (!memory || memory->kind != MEMORY_MAPPED || memory->range.base != base ||
            memory->range.size > end - base)
            return false;
        base += memory->range.size;
    }
    return size != 0;
}

static CUresult unmap(CUdeviceptr base, size_t size)
{
    CU_ARGUMENT(size <= UINT64_MAX - base && is_mapped(base, size));
    CU_REQUIRE(size >= LARGE || step_delay(driver(), "unmap") != 0, CUDA_ERROR_UNKNOWN);
    struct memory *memory = memory_find(base);
    if (memory->device)
        engine_wait_device(memory->device);
    for (uint64_t end = base + size; base < end && (memory = memory_find(base));) {
        base += memory->range.size;
        memory_release(memory);
    }
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemUnmap, (CUdeviceptr base, size_t size), unmap(base, size))

static CUresult set_access(CUdeviceptr base, size_t size, const CUmemAccessDesc *list, size_t count)
{
    int flags = 0;
    CU_ARGUMENT(list && count && size <= UINT64_MAX - base && is_mapped(base, size));
    for (size_t i = 0; i < count; i++) {
        CU_ARGUMENT(list[i].flags == CU_MEM_ACCESS_NONE || list[i].flags == CU_MEM_ACCESS_READ ||
                    list[i].flags == CU_MEM_ACCESS_READWRITE);
        if (list[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE)
            CU_REQUIRE(device_at(list[i].location.id), CUDA_ERROR_INVALID_DEVICE);
        flags |= list[i].flags;
    }
    int protection = flags == CU_MEM_ACCESS_NONE   ? PROT_NONE
                     : flags == CU_MEM_ACCESS_READ ? PROT_READ
                                                   : PROT_READ | PROT_WRITE;
    CU_REQUIRE(mprotect((void *)(uintptr_t)base, size, protection) == 0, CUDA_ERROR_OPERATING_SYSTEM);
    for (uint64_t end = base + size; base < end;) {
        struct memory *memory = memory_find(base);
        memory->flags = (uint32_t)flags;
        base += memory->range.size;
    }
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemSetAccess, (CUdeviceptr base, size_t size, const CUmemAccessDesc *list, size_t count),
          set_access(base, size, list, count))

static CUresult get_access(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address)
{
    const struct memory *memory = memory_find(address);
    CU_ARGUMENT(flags && location && memory && memory->kind == MEMORY_MAPPED);
    *flags = memory->flags;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemGetAccess, (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address),
          get_access(flags, location, address))

static CUresult granularity(size_t *out, const CUmemAllocationProp *properties, int option)
{
    CU_ARGUMENT(out && properties && (option == 0 || option == 1));
    *out = PAGE;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemGetAllocationGranularity, (size_t * out, const CUmemAllocationProp *properties, int option),
          granularity(out, properties, option))

static CUresult get_properties(CUmemAllocationProp *out, CUmemGenericAllocationHandle handle)
{
    const struct vmm *vmm = vmm_of(handle);
    CU_ARGUMENT(out && vmm);
    *out = vmm->properties;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemGetAllocationPropertiesFromHandle,
          (CUmemAllocationProp * out, CUmemGenericAllocationHandle handle), get_properties(out, handle))
