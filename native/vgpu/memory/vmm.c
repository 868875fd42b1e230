/* What cuMemCreate makes counts from then on, mapped or not, until its last handle and its last mapping are gone. */
#include "charge/charge.h"
#include "charge/resident.h"
#include "descriptor.h"
#include "vmm.h"

#include <stdlib.h>
#include <string.h>

/* A descriptor keeps the memory that it was made for, too (measured on driver 580), and so does each copy of it. The
 * lock is held. */
static bool may_live_on(const struct item *memory)
{
    const struct probe probe = {(int)memory->other, memory->device, memory->inode};
    return memory->mark && descriptor_lives(&probe, memory->mark);
}

static void end_memory(const struct item *memory)
{
    refund(memory);
    if (memory->mark)
        descriptor_unprobe(&(struct probe){(int)memory->other, memory->device, memory->inode});
}

static bool is_closed(const struct item *item, uint64_t position)
{
    return item->kind == ITEM_MEMORY && item->count == 0 && item->position == position && !may_live_on(item);
}

bool exports_read(int position)
{
    bool found = false;
    struct item last;
    for (uint64_t slot = 0; item_take_next(&slot, is_closed, (uint64_t)position, &last); found = true) {
        atomic_fetch_sub(&process()->exported, 1);
        end_memory(&last);
    }
    return found;
}

void memory_drop(uint64_t number)
{
    struct item last = {0};
    items_lock();
    struct item *memory = item_find(ITEM_MEMORY, number);
    if (memory && --memory->count == 0) {
        if (may_live_on(memory)) {
            atomic_fetch_add(&process()->exported, 1);
        } else {
            last = *memory;
            item_remove(memory);
        }
    }
    items_unlock();
    if (last.kind != ITEM_FREE)
        end_memory(&last);
}

void memory_add_handle(uint64_t handle, uint64_t number)
{
    struct item made = {.kind = ITEM_HANDLE, .key = handle, .other = number};
    struct item *memory = item_find(ITEM_MEMORY, number);
    if (memory)
        memory->count++;
    struct item *item = item_find(ITEM_HANDLE, handle);
    if (!item && item_insert(&made))
        item = item_find(ITEM_HANDLE, handle);
    if (item)
        item->count++;
}

static CUresult create(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *properties,
                       unsigned long long flags, const struct item *memory)
{
    CUmemGenericAllocationHandle handle; /* another thread may change what the program has */
    CUresult result = REAL(cuMemCreate)(&handle, size, properties, flags);
    if (result != CUDA_SUCCESS)
        return result;
    account_commit(memory->position, memory->bytes);
    items_lock();
    item_insert(memory);
    memory_add_handle(handle, memory->key);
    items_unlock();
    *out = handle;
    return result;
}

CU_API CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size,
                            const CUmemAllocationProp *properties, unsigned long long flags)
{
    struct target to;
    CUmemAllocationProp own; /* likewise */
    if (!out || !size || !properties)
        return REAL(cuMemCreate)(out, size, properties, flags);
    own = *properties;
    if (own.location.type != CU_MEM_LOCATION_TYPE_DEVICE || !target_device(own.location.id, &to))
        return REAL(cuMemCreate)(out, size, &own, flags);
    struct item memory = {.kind = ITEM_MEMORY, .bytes = round_capped(size, PAGE), .key = item_number()};
    if (!charge(to.position, memory.bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory.position = (uint8_t)to.position;
    CUresult result = WITH_ROOM(to.position, 0, IN_TURN(HANDLES, create(out, size, &own, flags, &memory)));
    if (result != CUDA_SUCCESS)
        account_withdraw(to.position, memory.bytes);
    return result;
}

static CUresult released(uint64_t handle, CUresult result)
{
    uint64_t number = 0;
    items_lock();
    struct item *item = result == CUDA_SUCCESS ? item_find(ITEM_HANDLE, handle) : NULL;
    if (item) {
        number = item->other;
        if (--item->count == 0)
            item_remove(item);
    }
    items_unlock();
    if (number)
        memory_drop(number);
    return result;
}

WRAP(cuMemRelease, (CUmemGenericAllocationHandle handle),
     IN_TURN(HANDLES, released(handle, REAL(cuMemRelease)(handle))))

static uint64_t mapped_at(uint64_t address)
{
    EACH_ITEM (at)
        if (at->kind == ITEM_MAPPING && address - at->key < at->bytes)
            return at->other;
    return 0;
}

static CUresult retain(CUmemGenericAllocationHandle *out, void *address)
{
    CUmemGenericAllocationHandle handle;
    CUresult result = REAL(cuMemRetainAllocationHandle)(out ? &handle : NULL, address);
    items_lock();
    uint64_t number = result == CUDA_SUCCESS ? mapped_at(KEY(address)) : 0;
    if (number)
        memory_add_handle(handle, number);
    items_unlock();
    return HAND_OUT(out, handle, result);
}

WRAP(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * out, void *address),
     IN_TURN(HANDLES, retain(out, address)))

/* More of another container's memory is mapped than was before; false: it does not fit. `forced`: it counts all the same. */
static bool charge_mapped(uint64_t number, uint64_t bytes, bool forced)
{
    struct item memory;
    if (!item_get(ITEM_MEMORY, number, &memory) || !memory.foreign || memory.bytes >= bytes)
        return true;
    uint64_t more = bytes - memory.bytes;
    if (!forced && !charge(memory.position, more))
        return false;
    items_lock();
    struct item *now = item_find(ITEM_MEMORY, number);
    bool same = now && now->bytes == memory.bytes;
    if (same)
        now->bytes = bytes;
    items_unlock();
    account_settle(memory.position, forced ? 0 : more, same ? more : 0);
    return same || charge_mapped(number, bytes, forced);
}

static CUresult unmapped(uint64_t address, uint64_t end, CUresult result)
{
    while (result == CUDA_SUCCESS && address < end) {
        struct item item;
        if (item_take(ITEM_MAPPING, address, &item)) {
            memory_drop(item.other);
            address += item.bytes ? item.bytes : PAGE;
        } else {
            address += PAGE; /* of no interest */
        }
    }
    return result;
}

static CUresult map(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                    unsigned long long flags)
{
    CUresult result = REAL(cuMemMap)(address, size, offset, handle, flags);
    if (result != CUDA_SUCCESS)
        return result;
    items_lock();
    const struct item *item = item_find(ITEM_HANDLE, handle);
    struct item *memory = item ? item_find(ITEM_MEMORY, item->other) : NULL;
    struct item made = {.kind = ITEM_MAPPING, .key = address, .bytes = size};
    bool entered = true; /* else there is no room in the books */
    if (memory) {
        made.other = memory->key;
        memory->count++;
        entered = item_insert(&made);
    }
    items_unlock();
    uint64_t bytes = round_capped(size, PAGE) + offset;
    if (!made.other || (entered && charge_mapped(made.other, bytes, false)))
        return result;
    if (REAL(cuMemUnmap)(address, size) != CUDA_SUCCESS) /* what stays mapped stays in the books */
        charge_mapped(made.other, bytes, true);
    else if (entered)
        unmapped(address, address + size, CUDA_SUCCESS);
    else
        memory_drop(made.other);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

WRAP(cuMemMap,
     (CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
      unsigned long long flags),
     IN_TURN(HANDLES, map(address, size, offset, handle, flags)))
WRAP(cuMemUnmap, (CUdeviceptr address, size_t size),
     IN_TURN(HANDLES, unmapped(address, address + size, REAL(cuMemUnmap)(address, size))))

/* A sparse array holds what it was given, until it is destroyed: what is unmapped from it before counts until then. */
static void bind(const CUarrayMapInfo *info)
{
    uint64_t resource = KEY(info->resource);
    items_lock();
    const struct item *handle = item_find(ITEM_HANDLE, info->memHandle);
    struct item *memory = handle ? item_find(ITEM_MEMORY, handle->other) : NULL;
    struct item made = {.kind = ITEM_BOUND, .bytes = resource};
    if (memory) {
        made.other = memory->key;
        made.key = resource * UINT64_C(0x9e3779b97f4a7c15) + made.other;
        if (!item_find(ITEM_BOUND, made.key)) {
            memory->count++;
            if (item_insert(&made))
                atomic_fetch_add(&process()->bound, 1);
        }
    }
    items_unlock();
}

/* With a copy of the list, which another thread may change. */
static CUresult map_array(CUarrayMapInfo *list, unsigned int count, CUstream stream,
                          type_cuMemMapArrayAsync call)
{
    if (!list || !count)
        return call(list, count, stream);
    CUarrayMapInfo *own = calloc(count, sizeof(*own));
    if (!own)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(own, list, count * sizeof(*own));
    CUresult result = call(own, count, stream);
    for (unsigned int i = 0; result == CUDA_SUCCESS && i < count; i++)
        if (own[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP)
            bind(&own[i]);
    free(own);
    return result;
}

TWINS(cuMemMapArrayAsync, (CUarrayMapInfo * list, unsigned int count, CUstream stream),
      IN_TURN(HANDLES, map_array(list, count, stream, REAL_IN(per_thread, cuMemMapArrayAsync))))

static bool is_bound_to(const struct item *item, uint64_t resource)
{
    return item->kind == ITEM_BOUND && item->bytes == resource;
}

CUresult bound_drop(const void *array, CUresult result)
{
    struct process *in = process();
    struct item bound;
    uint64_t resource = KEY(array), slot = 0;
    while (result == CUDA_SUCCESS && in && atomic_load(&in->bound) &&
           item_take_next(&slot, is_bound_to, resource, &bound)) {
        atomic_fetch_sub(&in->bound, 1);
        memory_drop(bound.other);
    }
    return result;
}
