/* cuMemAlloc and its kin. */
#include "memory.h"

#include "engine.h"
#include "stream.h"

#include <limits.h>
#include <stdlib.h>
#include <sys/mman.h>

struct memory *memory_new(struct context *context, enum memory_kind kind, uint64_t size)
{
    struct memory *memory = calloc(1, sizeof(*memory));
    if (memory) {
        memory->kind = kind;
        memory->context = context;
        memory->device = context->device;
        memory->range.size = size;
    }
    return memory;
}

void memory_enter(struct memory *memory)
{
    memory->id = ++driver()->next_id;
    range_insert(&driver()->memory, &memory->range);
}

struct memory *memory_find(uint64_t address)
{
    return (struct memory *)range_at(&driver()->memory, address);
}

static CUresult allocate_large(struct memory *memory)
{
    memory->taken = round_up(memory->range.size, PAGE);
    CU_TRY(ledger_charge(memory->device, memory->taken));
    CUresult result = space_take(memory->device, memory->taken, &memory->range.base);
    if (result != CUDA_SUCCESS)
        ledger_refund(memory->device, memory->taken);
    else
        memory->charged = memory->taken;
    return result;
}

/* The driver packs up to 1 MiB and rounds what is larger up to 2 MiB. */
CUresult memory_allocate(struct context *context, uint64_t size, enum memory_kind kind, struct memory **out)
{
    CU_ARGUMENT(size);
    CU_REQUIRE(size <= context->device->capacity, CUDA_ERROR_OUT_OF_MEMORY);
    struct memory *memory = memory_new(context, kind, size);
    CU_REQUIRE(memory, CUDA_ERROR_OUT_OF_MEMORY);
    CUresult result = size <= MIB ? chunk_take(memory->device, size, &memory->range.base, &memory->chunk)
                                  : allocate_large(memory);
    if (result != CUDA_SUCCESS) {
        free(memory);
        return result;
    }
    memory_enter(memory);
    *out = memory;
    return CUDA_SUCCESS;
}

void memory_release(struct memory *memory)
{
    struct device *device = memory->device;
    void *address = (void *)(uintptr_t)memory->range.base;
    range_remove(&driver()->memory, &memory->range);
    switch (memory->kind) {
    case MEMORY_DEVICE:
    case MEMORY_GLOBAL:
        if (memory->chunk) {
            chunk_give(device, memory->chunk, memory->range.base, memory->range.size);
            break;
        }
        space_give(device, memory->range.base, memory->taken);
        ledger_refund(device, memory->charged);
        if (memory->export_id)
            ledger_drop(memory->export_id);
        break;
    case MEMORY_MANAGED:
        if (memory->resident)
            ledger_managed(device, -(int64_t)memory->taken);
        munmap(address, memory->taken);
        break;
    case MEMORY_HOST:
        munmap(address, memory->taken);
        break;
    case MEMORY_MAPPED:
        vmm_unmapped(memory);
        break;
    case MEMORY_IMPORTED:
        ipc_closed(memory);
        break;
    case MEMORY_POOL:
    case MEMORY_REGISTERED:
        break;
    }
    free(memory);
}

/* Memory of pools and mappings lives on without a context, as the driver has it. */
void memory_free_context(struct context *context)
{
    uint64_t from = 0;
    for (struct range *range; (range = range_from(&driver()->memory, from)) != NULL;) {
        struct memory *memory = (struct memory *)range;
        from = range->base + 1;
        if (memory->context == context && memory->kind != MEMORY_POOL && memory->kind != MEMORY_MAPPED)
            memory_release(memory);
    }
}

/* Mappings side by side serve as one stretch of memory. */
CUresult memory_touch(uint64_t address, uint64_t size, bool write)
{
    do {
        struct memory *memory = memory_find(address);
        CU_ARGUMENT(memory);
        uint64_t left = memory->range.size - (address - memory->range.base);
        CU_ARGUMENT(size <= left || memory->kind == MEMORY_MAPPED);
        CU_ARGUMENT(memory->kind != MEMORY_MAPPED ||
                    memory->flags &
                        (write ? CU_MEM_ACCESS_READWRITE & ~CU_MEM_ACCESS_READ : CU_MEM_ACCESS_READ));
        if (memory->kind == MEMORY_MANAGED && !memory->resident && size) {
            memory->resident = true;
            ledger_managed(memory->device, (int64_t)memory->taken);
        }
        size -= left < size ? left : size;
        address += left;
    } while (size);
    return CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr *out, size_t size)
{
    struct memory *memory;
    CU_CONTEXT(context);
    CU_ARGUMENT(out);
    CU_TRY(capture_allows_unsafe());
    CU_TRY(memory_allocate(context, size, MEMORY_DEVICE, &memory));
    *out = memory->range.base;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemAlloc_v2, (CUdeviceptr * out, size_t size), allocate(out, size))

static CUresult allocate_pitch(CUdeviceptr *out, size_t *pitch, size_t width, size_t height,
                               unsigned int element)
{
    size_t wide, size;
    CU_ARGUMENT(out && pitch && width && height && (element == 4 || element == 8 || element == 16));
    CU_REQUIRE(!__builtin_add_overflow(width, 511, &wide), CUDA_ERROR_OUT_OF_MEMORY);
    wide = wide / 512 * 512;
    CU_REQUIRE(!__builtin_mul_overflow(wide, height, &size), CUDA_ERROR_OUT_OF_MEMORY);
    CU_TRY(allocate(out, size));
    *pitch = wide;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemAllocPitch_v2,
          (CUdeviceptr * out, size_t *pitch, size_t width, size_t height, unsigned int element),
          allocate_pitch(out, pitch, width, height, element))

/* Waits for the device, as the driver may: work could still use the memory. */
static CUresult release(CUdeviceptr address)
{
    CU_CONTEXT(context);
    struct memory *memory = memory_find(address);
    CU_ARGUMENT(memory && memory->range.base == address);
    CU_ARGUMENT(memory->kind == MEMORY_DEVICE || memory->kind == MEMORY_MANAGED ||
                memory->kind == MEMORY_POOL || (memory->kind == MEMORY_IMPORTED && memory->pool));
    CU_ARGUMENT(!memory->freed_on);
    CU_TRY(capture_allows_unsafe());
    /* Memory of pools needs no wait, except for earlier frees of it that its stream has not come to yet. */
    if (memory->kind != MEMORY_POOL || memory->frees_due)
        engine_wait_device(memory->device);
    if (memory->kind == MEMORY_POOL)
        pool_free(memory);
    else
        memory_release(memory);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemFree_v2, (CUdeviceptr address), release(address))

static CUresult get_info(size_t *free_bytes, size_t *total)
{
    CU_CONTEXT(context);
    CU_ARGUMENT(free_bytes && total);
    uint64_t whole, room;
    ledger_room(context->device, true, &whole, &room);
    *free_bytes = room;
    *total = whole;
    return CUDA_SUCCESS;
}

CU_API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    CU_REQUIRE(!locked_is_away(), CUDA_ERROR_OPERATING_SYSTEM);
    CU_CALL(get_info(free_bytes, total));
}

CU_API CUresult cuMemGetInfo(unsigned int *free_bytes, unsigned int *total)
{
    size_t wide_free, wide_total;
    CU_REQUIRE(!locked_is_away(), CUDA_ERROR_OPERATING_SYSTEM);
    CU_ENTER();
    CUresult result = get_info(&wide_free, &wide_total);
    if (result == CUDA_SUCCESS && free_bytes && total) {
        *free_bytes = wide_free > UINT_MAX ? UINT_MAX : (unsigned int)wide_free;
        *total = wide_total > UINT_MAX ? UINT_MAX : (unsigned int)wide_total;
    }
    CU_RETURN(result);
}

static CUresult get_range(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    CU_CONTEXT(context);
    struct memory *memory = memory_find(address);
    CU_REQUIRE(memory && !memory->freed_on, CUDA_ERROR_NOT_FOUND);
    if (base)
        *base = memory->range.base;
    if (size)
        *size = memory->range.size;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t *size, CUdeviceptr address),
          get_range(base, size, address))
