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

/* The three ways to ask, and what they ask with. */
struct request {
    size_t size;
    size_t *pitch;
    size_t width, height;
    unsigned int element;
    bool managed;
    unsigned int flags;
    bool block; /* the driver gave one */
};

static CUresult ask_for_block(CUdeviceptr *out, struct request *request, CUdevice ordinal)
{
    uint64_t pitch = round_capped(request->width, 512);
    uint64_t size = request->pitch ? multiply_capped(pitch, request->height) : request->size;
    CUresult result = block_make(out, size, ordinal);
    request->block = result == CUDA_SUCCESS;
    if (request->block && request->pitch)
        *request->pitch = pitch;
    return result;
}

static CUresult ask_driver(CUdeviceptr *out, struct request *request, const struct target *to)
{
    if (to && !request->managed && block_suits(to, request->size) && mover_start()) {
        CUresult result = ask_for_block(out, request, to->ordinal);
        if (result != CUDA_ERROR_NOT_SUPPORTED)
            return result;
    }
    if (request->managed)
        return REAL(cuMemAllocManaged)(out, request->size, request->flags);
    if (request->pitch)
        return REAL(cuMemAllocPitch_v2)(out, request->pitch, request->width, request->height,
                                        request->element);
    return REAL(cuMemAlloc_v2)(out, request->size);
}

/* A pitch may turn out wider than thought. */
static CUresult book_pitch(const struct target *to, CUdeviceptr address, const struct request *request,
                           uint64_t reserved)
{
    uint64_t size = multiply_capped(*request->pitch, request->height);
    uint64_t bytes = size <= MIB ? PAGE : round_capped(size, PAGE);
    if (bytes > reserved && (reserved || size > MIB)) {
        if (!charge(to->position, bytes - reserved)) {
            REAL(cuMemFree_v2)(address); /* of a block the pitch was known */
            if (reserved)
                account_withdraw(to->position, reserved);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        reserved = bytes;
    } else if (bytes < reserved) {
        account_withdraw(to->position, reserved - bytes);
        reserved = bytes;
    }
    return book(to, address, size, reserved, request->block);
}

static CUresult allocate(CUdeviceptr *out, struct request *request)
{
    struct target to;
    CUdeviceptr at;
    size_t pitch = 0, *pitch_out = request->pitch;
    if (!out || !request->size || !target_current(&to))
        return ask_driver(out, request, NULL);
    if (pitch_out)
        request->pitch = &pitch;
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
    result = pitch_out ? book_pitch(&to, at, request, reserved)
                       : book(&to, at, request->managed && request->size <= MIB ? PAGE : request->size,
                              reserved, request->block);
    if (result == CUDA_SUCCESS && pitch_out)
        *pitch_out = pitch;
    return HAND_OUT(out, at, result);
}

WRAP(cuMemAlloc_v2, (CUdeviceptr * out, size_t size), allocate(out, &(struct request){.size = size}))
WRAP(cuMemAllocManaged, (CUdeviceptr * out, size_t size, unsigned int flags),
     allocate(out, &(struct request){.size = size, .managed = true, .flags = flags}))

WRAP(cuMemAllocPitch_v2,
     (CUdeviceptr * out, size_t *pitch, size_t width, size_t height, unsigned int element),
     pitch ? allocate(out, &(struct request){multiply_capped(round_capped(width, 512), height), pitch, width,
                                             height, element, false, 0, false})
           : REAL(cuMemAllocPitch_v2)(out, pitch, width, height, element))

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
