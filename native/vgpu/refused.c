/* What would give memory that nothing can count: refused where memory is limited, and not offered. */
#include "charge.h"

enum { DMA_BUF = 124, PAGEABLE = 88, IS_MANAGED = 8 };

static bool is_limited(CUdevice ordinal)
{
    struct target to;
    struct account_view view;
    return target_device(ordinal, &to) &&
           (to.position == NO_POSITION || !account_view(to.position, &view) || view.limit != VGPU_NO_LIMIT);
}

static bool is_limited_here(void)
{
    struct target to;
    return target_current(&to) && is_limited(to.ordinal);
}

CU_API CUresult cuDeviceGetAttribute(int *out, int attribute, CUdevice device)
{
    CUresult result = REAL(cuDeviceGetAttribute)(out, attribute, device);
    if (result == CUDA_SUCCESS && attribute == DMA_BUF && is_limited(device))
        *out = 0;
    return result;
}

/* A descriptor of another subsystem, which keeps the memory when it is freed here. */
CU_API CUresult cuMemGetHandleForAddressRange(void *out, CUdeviceptr address, size_t size, int type,
                                              unsigned long long flags)
{
    return is_limited_here() ? CUDA_ERROR_NOT_SUPPORTED
                             : REAL(cuMemGetHandleForAddressRange)(out, address, size, type, flags);
}

/* Managed memory is charged in full when it is made. The system's own, which some machines can move to a device, is not. */
static bool may_move(CUdeviceptr address, CUmemLocation to)
{
    int pageable = 0;
    unsigned int managed = 0;
    if (to.type != CU_LOCATION_DEVICE || !is_limited(to.id) ||
        REAL(cuDeviceGetAttribute)(&pageable, PAGEABLE, to.id) != CUDA_SUCCESS || !pageable)
        return true;
    return REAL(cuPointerGetAttribute)(&managed, IS_MANAGED, address) == CUDA_SUCCESS && managed;
}

#define PREFETCH(name, parameters, arguments, to)                                                           \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        return may_move(address, to) ? REAL(name) arguments : CUDA_ERROR_NOT_SUPPORTED;                     \
    }

PREFETCH(cuMemPrefetchAsync, (CUdeviceptr address, size_t size, CUdevice device, CUstream stream),
         (address, size, device, stream), ((CUmemLocation){CU_LOCATION_DEVICE, device}))
PREFETCH(cuMemPrefetchAsync_ptsz, (CUdeviceptr address, size_t size, CUdevice device, CUstream stream),
         (address, size, device, stream), ((CUmemLocation){CU_LOCATION_DEVICE, device}))
PREFETCH(cuMemPrefetchAsync_v2,
         (CUdeviceptr address, size_t size, CUmemLocation where, unsigned int flags, CUstream stream),
         (address, size, where, flags, stream), where)
PREFETCH(cuMemPrefetchAsync_v2_ptsz,
         (CUdeviceptr address, size_t size, CUmemLocation where, unsigned int flags, CUstream stream),
         (address, size, where, flags, stream), where)

/* Locations hold from the index beside them on. */
static bool may_move_all(const CUdeviceptr *list, size_t count, const CUmemLocation *where,
                         const size_t *from, size_t locations)
{
    size_t at = 0;
    for (size_t i = 0; list && where && from && locations && i < count; i++) {
        while (at + 1 < locations && from[at + 1] <= i)
            at++;
        if (!may_move(list[i], where[at]))
            return false;
    }
    return true;
}

#define PREFETCH_BATCH(name)                                                                                \
    CU_API CUresult name(CUdeviceptr *list, size_t *sizes, size_t count, CUmemLocation *where,              \
                         size_t *from, size_t locations, unsigned long long flags, CUstream stream)         \
    {                                                                                                       \
        return may_move_all(list, count, where, from, locations)                                            \
                   ? REAL(name)(list, sizes, count, where, from, locations, flags, stream)                  \
                   : CUDA_ERROR_NOT_SUPPORTED;                                                              \
    }

PREFETCH_BATCH(cuMemPrefetchBatchAsync)
PREFETCH_BATCH(cuMemPrefetchBatchAsync_ptsz)
PREFETCH_BATCH(cuMemDiscardAndPrefetchBatchAsync)
PREFETCH_BATCH(cuMemDiscardAndPrefetchBatchAsync_ptsz)
