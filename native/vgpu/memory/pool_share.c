/* Memory of pools that goes to other processes: charged to the exporter's pool, and when the exporter ends first, to an
 * importer. Imported pools give no memory, but what is in them is mapped. */
#include "charge/charge.h"
#include "slice/share.h"
#include "vmm.h"

/* What the driver may keep for an importer alone: no less than a step, and no more than the pool has. */
static uint64_t kept_for(CUmemoryPool pool, size_t size)
{
    uint64_t reserved = UINT64_MAX;
    if (REAL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) != CUDA_SUCCESS ||
        reserved < size)
        reserved = UINT64_MAX;
    return least(round_capped(size, POOL_STEP), round_capped(reserved, PAGE));
}

static CUresult export(CUmemPoolPtrExportData *out, CUdeviceptr address)
{
    CUmemoryPool pool = NULL;
    CUdeviceptr base;
    size_t size;
    struct item item;
    CUmemPoolPtrExportData own; /* another thread may change what the program has */
    CUresult result = REAL(cuMemPoolExportPointer)(out ? &own : NULL, address);
    if (result == CUDA_SUCCESS)
        *out = own;
    if (result != CUDA_SUCCESS || item_get(ITEM_EXPORT, address, &item) ||
        REAL(cuPointerGetAttribute)(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) != CUDA_SUCCESS ||
        !item_get(ITEM_POOL, KEY(pool), &item) ||
        REAL(cuMemGetAddressRange_v2)(&base, &size, address) != CUDA_SUCCESS)
        return result;
    struct item made = {.kind = ITEM_EXPORT, .key = address};
    made.share = share_export(own.reserved, item.position, kept_for(pool, size));
    if (made.share && item_put(&made))
        atomic_fetch_add(&process()->pointers, 1);
    return result;
}

WRAP(cuMemPoolExportPointer, (CUmemPoolPtrExportData * out, CUdeviceptr address),
     IN_TURN(HANDLES, export(out, address)))

CU_API CUresult cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
    CUdeviceptr at;
    CUmemPoolPtrExportData own; /* another thread may change what the program has */
    if (!data)
        return REAL(cuMemPoolImportPointer)(out, pool, data);
    own = *data;
    CUresult result = REAL(cuMemPoolImportPointer)(out ? &at : NULL, pool, &own);
    if (result != CUDA_SUCCESS)
        return result;
    *out = at;
    struct item made = {
        .kind = ITEM_EXPORT, .key = at, .imported = 1, .share = share_import(own.reserved, true)};
    if (!made.share && !charge_foreign(at, &made)) {
        REAL(cuMemFree_v2)(at);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if ((made.share || made.bytes) && item_put(&made))
        atomic_fetch_add(&process()->pointers, 1);
    return result;
}

/* An importer is to free it before its exporter does. The driver keeps it for one that has not, and the exporter's pool
 * says nothing of it any more. */
void pool_freed(CUdeviceptr address)
{
    struct process *in = process();
    struct item item;
    if (!in || !atomic_load_explicit(&in->pointers, memory_order_relaxed) ||
        !item_take(ITEM_EXPORT, address, &item))
        return;
    atomic_fetch_sub(&in->pointers, 1);
    if (item.imported)
        share_leave(item.share);
    else if (item.bytes)
        account_release(item.position, item.bytes);
    else
        share_give_up(item.share);
}
