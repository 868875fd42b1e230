/* cuIpc*: charged once, to the exporter for as long as it has the memory, then to an importer that still has it. */
#include "charge/charge.h"
#include "slice/share.h"
#include "vmm.h"

static CUresult export(CUipcMemHandle *out, CUdeviceptr address)
{
    struct item item;
    CUdeviceptr base;
    size_t size;
    CUipcMemHandle own; /* another thread may change what the program has */
    CUresult result = REAL(cuIpcGetMemHandle)(out ? &own : NULL, address);
    if (result == CUDA_SUCCESS)
        *out = own;
    if (result == CUDA_SUCCESS && REAL(cuMemGetAddressRange_v2)(&base, &size, address) == CUDA_SUCCESS)
        address = base; /* the handle is of all of it */
    if (result != CUDA_SUCCESS || !item_get(ITEM_LINEAR, address, &item) || item.share)
        return result;
    /* A small one's chunk stays whole for whoever has it open. */
    uint32_t share = share_export(own.reserved, item.position, item.small ? PAGE : item.bytes);
    ITEM_SET(ITEM_LINEAR, address, share, share);
    return result;
}

WRAP(cuIpcGetMemHandle, (CUipcMemHandle * out, CUdeviceptr address), IN_TURN(HANDLES, export(out, address)))

/* Whether this process has the same import open once more. */
static bool is_open_elsewhere(uint32_t share)
{
    bool found = false;
    items_lock();
    EACH_ITEM (item)
        found |= item->kind == ITEM_IMPORT && item->share == share;
    items_unlock();
    return found;
}

static CUresult entered(const CUdeviceptr *address, const CUipcMemHandle *handle, CUresult result)
{
    struct target to;
    struct item item = {.kind = ITEM_IMPORT, .imported = 1, .count = 1};
    if (result != CUDA_SUCCESS)
        return result;
    item.key = *address;
    items_lock();
    struct item *again = item_find(ITEM_IMPORT, *address);
    if (again)
        again->count++;
    items_unlock();
    if (again)
        return CUDA_SUCCESS;
    item.share = share_import(handle->reserved, false);
    if (!item.share && !charge_foreign(*address, &item)) {
        REAL(cuIpcCloseMemHandle)(*address);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if ((item.share || item.bytes) && target_current(&to)) {
        item.context = to.context;
        item_put(&item);
    }
    return CUDA_SUCCESS;
}

#define OPEN(name)                                                                                          \
    CU_API CUresult name(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags)                       \
    {                                                                                                       \
        CUdeviceptr at;                                                                                     \
        CUresult result =                                                                                   \
            IN_TURN(HANDLES, entered(&at, &handle, REAL(name)(out ? &at : NULL, handle, flags)));           \
        return HAND_OUT(out, at, result);                                                                   \
    }

OPEN(cuIpcOpenMemHandle)
OPEN(cuIpcOpenMemHandle_v2)

static CUresult closed(CUdeviceptr address, CUresult result)
{
    struct item item = {0};
    items_lock();
    struct item *import = result == CUDA_SUCCESS ? item_find(ITEM_IMPORT, address) : NULL;
    if (import && --import->count == 0) {
        item = *import;
        item_remove(import);
    }
    items_unlock();
    if (item.kind != ITEM_FREE && (!item.share || !is_open_elsewhere(item.share)))
        refund(&item);
    return result;
}

WRAP(cuIpcCloseMemHandle, (CUdeviceptr address),
     IN_TURN(HANDLES, closed(address, REAL(cuIpcCloseMemHandle)(address))))
