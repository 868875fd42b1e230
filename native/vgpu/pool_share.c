/* Memory of pools that goes to other processes: charged to the exporter's pool, and when the exporter ends first, to an
 * importer. Imported pools give no memory, but what is in them is mapped. */
#include "charge.h"
#include "share.h"

CU_API CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *out, CUdeviceptr address)
{
    CUmemoryPool pool = NULL;
    CUdeviceptr base;
    size_t size;
    struct item item;
    CUresult result = REAL(cuMemPoolExportPointer)(out, address);
    if (result != CUDA_SUCCESS || item_get(ITEM_EXPORT, address, &item) ||
        REAL(cuPointerGetAttribute)(&pool, CU_POINTER_POOL, address) != CUDA_SUCCESS ||
        !item_get(ITEM_POOL, (uint64_t)(uintptr_t)pool, &item) ||
        REAL(cuMemGetAddressRange_v2)(&base, &size, address) != CUDA_SUCCESS)
        return result;
    struct item made = {.kind = ITEM_EXPORT, .key = address};
    made.share = share_export(out->reserved, item.position, round_capped(size, PAGE));
    if (made.share && item_put(&made))
        atomic_fetch_add(&process()->pointers, 1);
    return result;
}

CU_API CUresult cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
    CUresult result = REAL(cuMemPoolImportPointer)(out, pool, data);
    if (result != CUDA_SUCCESS)
        return result;
    struct item made = {
        .kind = ITEM_EXPORT, .key = *out, .imported = 1, .share = share_import(data->reserved, true)};
    if (!made.share && !charge_foreign(*out, 0, &made)) {
        REAL(cuMemFree_v2)(*out);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if ((made.share || made.bytes) && item_put(&made))
        atomic_fetch_add(&process()->pointers, 1);
    return result;
}

/* An importer must have freed it before its exporter does. */
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
        share_end(item.share);
}
