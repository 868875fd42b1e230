#include "block.h"

#define PIECE (64 * MIB)

enum { ATTRIBUTE_CONTEXT = 1, ATTRIBUTE_RANGE_START = 11, ATTRIBUTE_RANGE_SIZE = 12 };

bool block_suits(const struct target *to, uint64_t size)
{
    const struct process *in = process();
    return in && size >= PAGE && to->position == 0 && in->quota.flags & VGPU_QUOTA_SWAPS &&
           in->quota.device_count == 1;
}

static CUresult map_piece(CUdeviceptr address, uint64_t bytes, const CUmemAllocationProp *what)
{
    CUmemGenericAllocationHandle handle;
    CUresult result = REAL(cuMemCreate)(&handle, bytes, what, 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemMap)(address, bytes, 0, handle, 0);
    REAL(cuMemRelease)(handle);
    return result;
}

/* One that the driver did not let go of is there still, and another may be gone. */
static bool is_mapped(CUdeviceptr address)
{
    CUmemGenericAllocationHandle handle;
    bool is = REAL(cuMemRetainAllocationHandle)(&handle, (void *)(uintptr_t)address) == CUDA_SUCCESS;
    if (is)
        REAL(cuMemRelease)(handle);
    return is;
}

CUresult block_map(CUdeviceptr address, uint64_t bytes, CUdevice ordinal)
{
    const CUmemLocation device = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal};
    const CUmemAllocationProp what = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = device};
    const CUmemAccessDesc access = {device, CU_MEM_ACCESS_READWRITE};
    CUresult result = CUDA_SUCCESS;
    uint64_t done = 0;
    while (result == CUDA_SUCCESS && done < bytes) {
        uint64_t piece = least(PIECE, bytes - done);
        result = is_mapped(address + done) ? CUDA_SUCCESS : map_piece(address + done, piece, &what);
        done += result == CUDA_SUCCESS ? piece : 0;
    }
    if (result == CUDA_SUCCESS)
        result = REAL(cuMemSetAccess)(address, bytes, &access, 1);
    if (result != CUDA_SUCCESS)
        block_unmap(address, done);
    return result;
}

CUresult block_unmap(CUdeviceptr address, uint64_t bytes)
{
    CUresult result = CUDA_SUCCESS;
    for (uint64_t done = 0, piece; done < bytes; done += piece) {
        piece = least(PIECE, bytes - done);
        CUresult one = is_mapped(address + done) ? REAL(cuMemUnmap)(address + done, piece) : CUDA_SUCCESS;
        result = one != CUDA_SUCCESS ? one : result;
    }
    return result;
}

CUresult block_make(CUdeviceptr *out, uint64_t size, CUdevice ordinal)
{
    uint64_t bytes = round_capped(size, PAGE);
    CUresult result = REAL(cuMemAddressReserve)(out, bytes, 0, 0, 0);
    if (result != CUDA_SUCCESS)
        return CUDA_ERROR_NOT_SUPPORTED;
    result = block_map(*out, bytes, ordinal);
    if (result != CUDA_SUCCESS)
        REAL(cuMemAddressFree)(*out, bytes);
    else
        atomic_store(&hold_is_used, true);
    return result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY ? result : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult block_end(const struct item *item)
{
    CUresult result = block_unmap(item->key, item->bytes);
    if (result != CUDA_SUCCESS)
        return result;
    atomic_fetch_sub(&process()->blocks, item->bytes);
    return REAL(cuMemAddressFree)(item->key, item->bytes);
}

/* As cuMemFree does: what unmaps does not wait. */
CUresult block_free(const struct item *item)
{
    CUresult result = IN_CONTEXT((CUcontext)(uintptr_t)item->context, REAL(cuCtxSynchronize)(),
                                 CUDA_ERROR_INVALID_CONTEXT);
    return result == CUDA_SUCCESS ? block_end(item) : result;
}

/* The block that an address is in. */
static bool find(CUdeviceptr address, struct item *out)
{
    bool found = false;
    if (!atomic_load_explicit(&hold_is_used, memory_order_relaxed))
        return false;
    items_lock();
    EACH_ITEM (item)
        if (item->block && address - item->key < item->bytes) {
            *out = *item;
            found = true;
        }
    items_unlock();
    return found;
}

/* The program has it as one, of the size that it has asked for. */
static CUresult range(CUdeviceptr *base, size_t *size, CUdeviceptr address, CUresult result)
{
    struct item item;
    if (result == CUDA_SUCCESS && find(address, &item)) {
        if (base)
            *base = item.key;
        if (size)
            *size = item.other;
    }
    return result;
}

WRAP(cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t *size, CUdeviceptr address),
     HELD(range(base, size, address, REAL(cuMemGetAddressRange_v2)(base, size, address))))

static bool put(void *out, int attribute, const struct item *item)
{
    if (attribute == ATTRIBUTE_CONTEXT)
        *(CUcontext *)out = (CUcontext)(uintptr_t)item->context;
    else if (attribute == ATTRIBUTE_RANGE_START)
        *(CUdeviceptr *)out = item->key;
    else if (attribute == ATTRIBUTE_RANGE_SIZE)
        *(size_t *)out = item->other;
    else
        return false;
    return true;
}

static CUresult get(void *out, int attribute, CUdeviceptr address)
{
    struct item item;
    if (out && find(address, &item) && put(out, attribute, &item))
        return CUDA_SUCCESS;
    return REAL(cuPointerGetAttribute)(out, attribute, address);
}

WRAP(cuPointerGetAttribute, (void *out, int attribute, CUdeviceptr address),
     HELD(get(out, attribute, address)))

static CUresult get_all(unsigned int count, int *attributes, void **out, CUdeviceptr address)
{
    struct item item;
    CUresult result = REAL(cuPointerGetAttributes)(count, attributes, out, address);
    if (result == CUDA_SUCCESS && find(address, &item))
        for (unsigned int i = 0; i < count; i++)
            put(out[i], attributes[i], &item);
    return result;
}

WRAP(cuPointerGetAttributes, (unsigned int count, int *attributes, void **out, CUdeviceptr address),
     HELD(get_all(count, attributes, out, address)))
