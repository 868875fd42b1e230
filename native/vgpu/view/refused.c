/* What would give memory that nothing can count: refused where memory is limited, and not offered. */
#include "charge/charge.h"

enum { DMA_BUF = 124, PAGEABLE = 88, IS_MANAGED = 8 };

#define IF(may, call) ((may) ? (call) : CUDA_ERROR_NOT_SUPPORTED)

static bool is_limited(CUdevice ordinal)
{
    struct target to;
    struct account_view view;
    return target_device(ordinal, &to) &&
           (to.position == NO_POSITION || !account_view(to.position, &view) || view.limit != VGPU_NO_LIMIT);
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
    struct target to;
    return IF(!target_current(&to) || !is_limited(to.ordinal),
              REAL(cuMemGetHandleForAddressRange)(out, address, size, type, flags));
}

/* Managed memory is charged in full when it is made, to one device. Of what no book has, such as variables of modules, the
 * driver tells the device; where there is only one, it is that one. */
static bool is_charged_to(CUdeviceptr address, size_t size, CUdevice device)
{
    struct target to;
    struct item item;
    CUdeviceptr base;
    size_t whole;
    int ordinal = -1, count = 0;
    if (REAL(cuDeviceGetCount)(&count) == CUDA_SUCCESS && count == 1)
        return true;
    if (!target_device(device, &to) ||
        REAL(cuMemGetAddressRange_v2)(&base, &whole, address) != CUDA_SUCCESS || address < base ||
        size > whole || address - base > whole - size)
        return false;
    if (item_get(ITEM_LINEAR, base, &item))
        return item.position == to.position;
    return REAL(cuPointerGetAttribute)(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) ==
               CUDA_SUCCESS &&
           ordinal == device;
}

/* The system's own memory, which some machines can move to a device, is not charged. */
static bool may_move(CUdeviceptr address, size_t size, CUmemLocation to)
{
    int pageable = 0;
    unsigned int managed = 0;
    if (to.type != CU_MEM_LOCATION_TYPE_DEVICE || !is_limited(to.id))
        return true;
    if (REAL(cuPointerGetAttribute)(&managed, IS_MANAGED, address) == CUDA_SUCCESS && managed)
        return is_charged_to(address, size, to.id);
    return REAL(cuDeviceGetAttribute)(&pageable, PAGEABLE, to.id) != CUDA_SUCCESS || !pageable;
}

static bool may_move_on(CUdeviceptr address, size_t size, CUdevice device)
{
    return may_move(address, size, (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device});
}

TWINS(cuMemPrefetchAsync, (CUdeviceptr address, size_t size, CUdevice device, CUstream stream),
      IF(may_move_on(address, size, device),
         REAL_IN(per_thread, cuMemPrefetchAsync)(address, size, device, stream)))
TWINS(cuMemPrefetchAsync_v2,
      (CUdeviceptr address, size_t size, CUmemLocation where, unsigned int flags, CUstream stream),
      IF(may_move(address, size, where),
         REAL_IN(per_thread, cuMemPrefetchAsync_v2)(address, size, where, flags, stream)))

enum { PREFERRED_LOCATION = 3 };

WRAP(cuMemAdvise, (CUdeviceptr address, size_t size, int advice, CUdevice device),
     IF(advice != PREFERRED_LOCATION || may_move_on(address, size, device),
        REAL(cuMemAdvise)(address, size, advice, device)))
WRAP(cuMemAdvise_v2, (CUdeviceptr address, size_t size, int advice, CUmemLocation where),
     IF(advice != PREFERRED_LOCATION || may_move(address, size, where),
        REAL(cuMemAdvise_v2)(address, size, advice, where)))

/* One after the other, each as it is when it is looked at. Locations hold from the index beside them on. */
static CUresult prefetch_all(const CUdeviceptr *list, const size_t *sizes, size_t count,
                             const CUmemLocation *where, const size_t *from, size_t locations,
                             CUstream stream, type_cuMemPrefetchAsync_v2 call)
{
    CUresult result = CUDA_SUCCESS;
    if (!list || !sizes || !count || !where || !from || !locations || locations > count)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0, at = 0; i < count && result == CUDA_SUCCESS; i++) {
        while (at + 1 < locations && from[at + 1] <= i)
            at++;
        CUdeviceptr address = list[i];
        CUmemLocation to = where[at];
        size_t size = sizes[i];
        result = IF(may_move(address, size, to), call(address, size, to, 0, stream));
    }
    return result;
}

/* What is discarded may as well be moved. */
#define PREFETCH_BATCH(name)                                                                                \
    TWINS(name,                                                                                             \
          (CUdeviceptr * list, size_t * sizes, size_t count, CUmemLocation * where, size_t * from,          \
           size_t locations, unsigned long long flags, CUstream stream),                                    \
          ((void)flags, prefetch_all(list, sizes, count, where, from, locations, stream,                    \
                                     REAL_IN(per_thread, cuMemPrefetchAsync_v2))))

PREFETCH_BATCH(cuMemPrefetchBatchAsync)
PREFETCH_BATCH(cuMemDiscardAndPrefetchBatchAsync)
