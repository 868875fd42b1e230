/* What the program is told of a device's memory: of the slice, not of the card. */
#include "charge/charge.h"
#include "charge/resident.h"

#include <limits.h>

/* False: the device is not limited, and the driver's own numbers stand. Where nothing can be allocated, all of it is
 * used: a total of 0 is nothing that programs expect. */
static bool slice_of(int position, uint64_t *total, uint64_t *used)
{
    struct account_view view;
    if (position != NO_POSITION)
        reclaim(position);
    if (position == NO_POSITION || !account_view(position, &view)) {
        *used = UINT64_MAX;
        return true;
    }
    if (view.limit == VGPU_NO_LIMIT)
        return false;
    *total = least(*total, view.limit);
    *used = view.used;
    return true;
}

CU_API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    struct target to;
    uint64_t used;
    CUresult result = RESIDENT(cuMemGetInfo_v2)(free_bytes, total);
    if (result != CUDA_SUCCESS || !target_current(&to))
        return result;
    uint64_t all = total ? *total : UINT64_MAX;
    if (!slice_of(to.position, &all, &used))
        return result;
    if (total)
        *total = all;
    if (free_bytes)
        *free_bytes = least(*free_bytes, used < all ? all - used : 0);
    return result;
}

CU_API CUresult cuMemGetInfo(unsigned int *free_bytes, unsigned int *total)
{
    size_t wide_free, wide_total;
    CUresult result = RESIDENT(cuMemGetInfo)(free_bytes, total);
    if (result != CUDA_SUCCESS || cuMemGetInfo_v2(&wide_free, &wide_total) != CUDA_SUCCESS)
        return result;
    if (free_bytes)
        *free_bytes = (unsigned int)least(wide_free, UINT_MAX);
    if (total)
        *total = (unsigned int)least(wide_total, UINT_MAX);
    return result;
}

CU_API CUresult cuDeviceTotalMem_v2(size_t *total, CUdevice device)
{
    struct target to;
    uint64_t used;
    CUresult result = REAL(cuDeviceTotalMem_v2)(total, device);
    if (result == CUDA_SUCCESS && target_device(device, &to)) {
        uint64_t all = *total;
        if (slice_of(to.position, &all, &used))
            *total = all;
    }
    return result;
}

CU_API CUresult cuDeviceTotalMem(unsigned int *total, CUdevice device)
{
    size_t wide;
    CUresult result = REAL(cuDeviceTotalMem)(total, device);
    if (result == CUDA_SUCCESS && cuDeviceTotalMem_v2(&wide, device) == CUDA_SUCCESS)
        *total = (unsigned int)least(wide, UINT_MAX);
    return result;
}
