/* cuMemAlloc and its kin. The driver packs up to 1 MiB into chunks of 2 MiB, in which the address shows the chunk, and
 * rounds what is larger up to 2 MiB (measured on driver 580). In slices that are swapped, what is larger is a block. */
#include "charge/charge.h"
#include "charge/holes.h"
#include "charge/resident.h"
#include "swap/block.h"
#include "swap/mover.h"

/* Whether a small request may fit where small ones are already. */
static bool may_fit_chunk(const struct target *to, uint64_t size)
{
    struct process *in = process();
    return in && to->position != NO_POSITION &&
           atomic_load_explicit(&in->small_room[to->position], memory_order_relaxed) >= (int64_t)size;
}

/* Enters a small allocation; true: its chunk is a new one. */
static bool enter_chunk(const struct item *item)
{
    items_lock();
    struct item *chunk = item_find(ITEM_CHUNK, item->key / PAGE);
    bool fresh = !chunk;
    struct item made = {
        .kind = ITEM_CHUNK, .key = item->key / PAGE, .position = item->position, .bytes = PAGE};
    if (fresh && item_insert(&made))
        chunk = item_find(ITEM_CHUNK, item->key / PAGE);
    if (chunk) {
        chunk->count++;
        chunk->other += item->other;
        atomic_fetch_add(&process()->small_room[item->position],
                         (int64_t)(fresh ? PAGE : 0) - (int64_t)item->other);
    }
    item_insert(item);
    items_unlock();
    return fresh;
}

/* Books what the driver gave. `reserved`: bytes that were asked for; 0: there may be room in a chunk. */
static CUresult book(const struct target *to, CUdeviceptr address, uint64_t size, uint64_t reserved,
                     bool block)
{
    struct item item = {.kind = ITEM_LINEAR,
                        .key = address,
                        .position = (uint8_t)to->position,
                        .context = to->context,
                        .other = size,
                        .block = block,
                        .small = size <= MIB};
    if (!item.small) {
        item.bytes = round_capped(size, PAGE);
        account_commit(to->position, reserved);
        item_put(&item);
        if (block) /* and the mover, which sees this, finds it */
            atomic_fetch_add(&process()->blocks, item.bytes);
        return CUDA_SUCCESS;
    }
    if (!enter_chunk(&item)) {
        if (reserved)
            account_withdraw(to->position, reserved);
        return CUDA_SUCCESS;
    }
    if (reserved || charge(to->position, reserved = PAGE)) {
        account_commit(to->position, reserved);
        return CUDA_SUCCESS;
    }
    /* It came to lie in a chunk of its own, for which there is no room. */
    account_force(to->position, PAGE);
    if (item_take(ITEM_LINEAR, address, &item) && REAL(cuMemFree_v2)(address) == CUDA_SUCCESS)
        refund(&item);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

struct request {
    size_t size;
    bool managed;
    unsigned int flags;
    bool block; /* the driver gave one */
};

static CUresult ask_driver(CUdeviceptr *out, struct request *request, const struct target *to)
{
    if (request->managed)
        return REAL(cuMemAllocManaged)(out, request->size, request->flags);
    if (to && block_suits(to, request->size) && mover_start()) {
        CUresult result = block_make(out, request->size, to->ordinal);
        request->block = result == CUDA_SUCCESS;
        if (result != CUDA_ERROR_NOT_SUPPORTED)
            return result;
    }
    return REAL(cuMemAlloc_v2)(out, request->size);
}

static CUresult allocate(CUdeviceptr *out, struct request *request)
{
    struct target to;
    CUdeviceptr at;
    if (!out || !request->size || !target_current(&to))
        return ask_driver(out, request, NULL);
    uint64_t reserved = round_capped(request->size, PAGE);
    bool small = request->size <= MIB && !request->managed;
    if (small && may_fit_chunk(&to, request->size))
        reserved = 0; /* the common case: nothing is asked for */
    else if (!charge(to.position, reserved))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = WITH_ROOM(to.position, reserved ? 0 : PAGE, HELD(ask_driver(&at, request, &to)));
    if (result != CUDA_SUCCESS) {
        if (reserved)
            account_withdraw(to.position, reserved);
        return result;
    }
    /* Managed memory may be resident in full at any time, and is never packed. */
    uint64_t size = request->managed && request->size <= MIB ? PAGE : request->size;
    return HAND_OUT(out, at, book(&to, at, size, reserved, request->block));
}

WRAP(cuMemAlloc_v2, (CUdeviceptr * out, size_t size), allocate(out, &(struct request){.size = size}))
WRAP(cuMemAllocManaged, (CUdeviceptr * out, size_t size, unsigned int flags),
     allocate(out, &(struct request){.size = size, .managed = true, .flags = flags}))

/* With rows as long as the driver makes them, but for elements that it refuses. */
CU_API CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height,
                                   unsigned int element)
{
    uint64_t row = round_capped(width, 512);
    struct request request = {.size = multiply_capped(row, height)};
    if (!pitch || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = allocate(out, &request);
    return HAND_OUT(pitch, row, result);
}

/* What was not booked here is the driver's to judge, and may be a pool's. */
static CUresult release(CUdeviceptr address)
{
    struct item item, pooled;
    bool known = item_take(ITEM_LINEAR, address, &item);
    bool in_pool = !known && item_take(ITEM_POOLED, address, &pooled);
    CUresult result = known && item.block ? block_free(&item) : REAL(cuMemFree_v2)(address);
    if (in_pool && result == CUDA_SUCCESS)
        hole_make(&pooled, NULL, true);
    else if (in_pool)
        item_put(&pooled);
    if (known)
        return refund_if(&item, result);
    if (result == CUDA_SUCCESS) {
        pool_freed(address);
        reclaim_soon();
    }
    reclaim_after_wait();
    return result;
}

WRAP(cuMemFree_v2, (CUdeviceptr address), HELD(release(address)))

/* The first versions, with addresses of 32 bits. */
WRAP(cuMemAlloc, (unsigned int *out, unsigned int size), ((void)out, (void)size, CUDA_ERROR_NOT_SUPPORTED))
WRAP(cuMemAllocPitch,
     (unsigned int *out, unsigned int *pitch, unsigned int width, unsigned int height, unsigned int element),
     ((void)out, (void)pitch, (void)width, (void)height, (void)element, CUDA_ERROR_NOT_SUPPORTED))
WRAP(cuMemFree, (unsigned int address), ((void)address, CUDA_ERROR_NOT_SUPPORTED))
