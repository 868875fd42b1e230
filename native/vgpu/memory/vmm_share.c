/* Memory that cuMemCreate made, as it goes to other processes: charged to its exporter, then to an importer. */
#include "charge/charge.h"
#include "descriptor.h"
#include "slice/share.h"
#include "vmm.h"

#include <string.h>

/* The bytes of a fabric handle are its own; a descriptor is known by its mark. */
static void name_descriptor(uint8_t name[SHARE_HANDLE], const struct item *memory)
{
    memset(name, 0, SHARE_HANDLE);
    memcpy(name, "nvc descriptor", 14);
    memcpy(name + 16, &memory->mark, sizeof(memory->mark));
    memcpy(name + 24, &memory->device, sizeof(memory->device));
    memcpy(name + 32, &memory->inode, sizeof(memory->inode));
}

/* A descriptor more of what is in the books. */
static void mark_descriptor(uint64_t number, int fd)
{
    struct probe probe = {0};
    items_lock();
    struct item *memory = item_find(ITEM_MEMORY, number);
    bool first = memory && !memory->mark;
    if (memory && (!descriptor_mark(fd, &memory->mark, memory->bytes ? memory->bytes : PAGE) ||
                   (first && !descriptor_probe(fd, &probe))))
        memory->count++; /* one that cannot be marked may be anywhere, for ever */
    if (first) {
        memory->other = (uint64_t)probe.fd;
        memory->device = probe.device;
        memory->inode = probe.inode;
    }
    items_unlock();
}

static CUresult export(void *out, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)
{
    uint8_t name[SHARE_HANDLE];
    struct item memory = {0};
    union {
        int fd;
        uint8_t fabric[SHARE_HANDLE];
    } own; /* another thread may change what the program has */
    bool known =
        out && (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || type == CU_MEM_HANDLE_TYPE_FABRIC);
    CUresult result = REAL(cuMemExportToShareableHandle)(known ? &own : out, handle, type, flags);
    if (result != CUDA_SUCCESS || !known)
        return result;
    memcpy(out, &own,
           type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? sizeof(own.fd) : sizeof(own.fabric));
    uint64_t number = item_get(ITEM_HANDLE, handle, &memory) ? memory.other : 0;
    if (number && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        mark_descriptor(number, own.fd);
    if (!number || !item_get(ITEM_MEMORY, number, &memory) || memory.imported || memory.share)
        return result;
    name_descriptor(name, &memory);
    if (type == CU_MEM_HANDLE_TYPE_FABRIC)
        memcpy(name, own.fabric, SHARE_HANDLE);
    uint32_t share = share_export(name, memory.position, memory.bytes);
    ITEM_SET(ITEM_MEMORY, number, share, share);
    return result;
}

WRAP(cuMemExportToShareableHandle,
     (void *out, CUmemGenericAllocationHandle handle, int type, unsigned long long flags),
     IN_TURN(HANDLES, export(out, handle, type, flags)))

/* One more handle of memory that this process has in its books by this share. */
static bool add_to_share(uint64_t handle, uint32_t share)
{
    uint64_t number = 0;
    items_lock();
    EACH_ITEM (at)
        if (at->kind == ITEM_MEMORY && at->share == share)
            number = at->key;
    if (number)
        memory_add_handle(handle, number);
    items_unlock();
    return number != 0;
}

/* What an import is: memory of this container's, which is charged already, or another's. False: it does not fit. */
static bool enter_import(struct item *memory, uint64_t handle, const void *os_handle, int type)
{
    uint8_t name[SHARE_HANDLE];
    struct probe probe = {0};
    CUmemAllocationProp properties;
    struct target to;
    uint64_t bytes = 0;
    int fd = (int)(intptr_t)os_handle;
    bool again = false;
    if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
        memcpy(name, os_handle, SHARE_HANDLE);
        memory->share = share_join(name, &again);
    } else if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
               descriptor_read(fd, &memory->mark, &bytes)) {
        descriptor_probe(fd, &probe);
        memory->other = (uint64_t)probe.fd;
        memory->device = probe.device;
        memory->inode = probe.inode;
        name_descriptor(name, memory);
        memory->share = share_join(name, &again);
    }
    if (memory->share && again && add_to_share(handle, memory->share)) {
        descriptor_unprobe(&probe);
        memory->kind = ITEM_FREE;
        return true;
    }
    memory->imported = memory->share != 0;
    if (memory->share)
        return true;
    if (REAL(cuMemGetAllocationPropertiesFromHandle)(&properties, handle) != CUDA_SUCCESS)
        return false;
    if (properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        !target_device(properties.location.id, &to))
        return true;
    if (!charge(to.position, bytes))
        return false;
    account_commit(to.position, bytes);
    memory->bytes = bytes;
    memory->position = (uint8_t)to.position;
    memory->foreign = 1;
    return true;
}

/* Charged to its exporter, if that is of this container. */
static CUresult import(CUmemGenericAllocationHandle *out, void *os_handle, int type)
{
    CUmemGenericAllocationHandle handle;
    uint8_t own[SHARE_HANDLE]; /* another thread may change what the program has */
    if (type == CU_MEM_HANDLE_TYPE_FABRIC && os_handle)
        os_handle = memcpy(own, os_handle, sizeof(own));
    CUresult result = REAL(cuMemImportFromShareableHandle)(out ? &handle : NULL, os_handle, type);
    if (result != CUDA_SUCCESS)
        return result;
    *out = handle;
    if (!process())
        return result;
    items_lock();
    const struct item *item = item_find(ITEM_HANDLE, handle);
    if (item)
        memory_add_handle(handle, item->other);
    items_unlock();
    if (item)
        return result;
    struct item memory = {.kind = ITEM_MEMORY, .key = item_number()};
    if (!enter_import(&memory, handle, os_handle, type)) {
        REAL(cuMemRelease)(handle);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (memory.kind == ITEM_FREE)
        return result;
    items_lock();
    item_insert(&memory);
    memory_add_handle(handle, memory.key);
    items_unlock();
    return result;
}

WRAP(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle * out, void *os_handle, int type),
     IN_TURN(HANDLES, import(out, os_handle, type)))
