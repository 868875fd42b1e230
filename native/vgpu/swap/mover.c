#include "mover.h"

#include "block.h"
#include "process/capture.h"
#include "staging.h"

enum { POLL_US = 5000 };

struct all {
    uint64_t bytes, away;
    uint64_t context; /* of one of them */
};

static struct all add_up(void)
{
    struct all all = {0};
    items_lock();
    EACH_ITEM (item)
        if (item->kind == ITEM_LINEAR && item->block) {
            all.bytes += item->bytes;
            all.away += item->count == BLOCK_AWAY ? item->bytes : 0;
            all.context = item->context;
        }
    items_unlock();
    return all;
}

/* The next one in that state; other items, which move it in the table, may come and go. */
static bool next(uint64_t *slot, uint32_t state, struct item *out)
{
    bool found = false;
    items_lock();
    for (int pass = 0; pass < 2 && !found; pass++) {
        for (; !found && *slot < item_slots(); ++*slot) {
            const struct item *item = item_at(*slot);
            found = item && item->kind == ITEM_LINEAR && item->block && item->count == state;
            if (found)
                *out = *item;
        }
        if (!found)
            *slot = 0;
    }
    items_unlock();
    return found;
}

static void set_state(const struct item *item, uint32_t state, uint64_t mark)
{
    items_lock();
    struct item *now = item_find(ITEM_LINEAR, item->key);
    if (now) {
        now->count = state;
        now->mark = mark;
    }
    items_unlock();
}

/* All in one state are in another one from now on. */
static void turn(uint32_t from, uint32_t to)
{
    items_lock();
    EACH_ITEM (item)
        if (item->kind == ITEM_LINEAR && item->block && item->count == from)
            item->count = to;
    items_unlock();
}

/* All of one state, out to the host one behind the other, or in from where each is. */
static CUresult copy(char *host, CUstream stream, uint32_t from, uint32_t to)
{
    CUresult result = CUDA_SUCCESS;
    struct item item;
    for (uint64_t slot = 0, used = 0; result == CUDA_SUCCESS && next(&slot, from, &item);) {
        uint64_t at = from == BLOCK_HERE ? used : item.mark;
        used += item.bytes;
        if (used > staging_size())
            result = CUDA_ERROR_OUT_OF_MEMORY;
        else if (from == BLOCK_HERE)
            result = REAL(cuMemcpyDtoHAsync_v2)(host + at, item.key, item.bytes, stream);
        else
            result = REAL(cuMemcpyHtoDAsync_v2)(item.key, host + at, item.bytes, stream);
        set_state(&item, to, at);
    }
    CUresult end = REAL(cuStreamSynchronize)(stream);
    return result != CUDA_SUCCESS ? result : end;
}

static void undo(uint32_t state)
{
    struct item item;
    for (uint64_t slot = 0; next(&slot, state, &item); set_state(&item, BLOCK_AWAY, item.mark))
        block_unmap(item.key, item.bytes);
}

static CUresult come_back(CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    CUdevice ordinal;
    struct item item;
    if (REAL(cuCtxGetDevice)(&ordinal) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_CONTEXT;
    for (uint64_t slot = 0; result == CUDA_SUCCESS && next(&slot, BLOCK_AWAY, &item);) {
        result = block_map(item.key, item.bytes, ordinal);
        if (result == CUDA_SUCCESS)
            set_state(&item, BLOCK_EMPTY, item.mark);
    }
    if (result == CUDA_SUCCESS)
        result = copy(staging_get(0), stream, BLOCK_EMPTY, BLOCK_BACK);
    if (result != CUDA_SUCCESS) {
        undo(BLOCK_EMPTY);
        undo(BLOCK_BACK);
        return result;
    }
    turn(BLOCK_BACK, BLOCK_HERE);
    hold_open();
    return result;
}

static CUresult leave(CUstream stream)
{
    struct item item;
    char *host = staging_get(add_up().bytes); /* while the program goes on */
    CUresult result = host ? hold_close() : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS)
        return result;
    host = staging_get(add_up().bytes);
    result = host ? copy(host, stream, BLOCK_HERE, BLOCK_COPIED) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        turn(BLOCK_COPIED, BLOCK_HERE);
        hold_open();
        return result;
    }
    for (uint64_t slot = 0; next(&slot, BLOCK_COPIED, &item); set_state(&item, BLOCK_AWAY, item.mark)) {
        CUresult one = block_unmap(item.key, item.bytes);
        result = one != CUDA_SUCCESS ? one : result;
    }
    if (result != CUDA_SUCCESS) /* a block may be there in part: all come back */
        come_back(stream);
    return result;
}

static CUresult move(uint64_t asked, const struct all *all)
{
    CUcontext context = (CUcontext)(uintptr_t)all->context;
    CUstream stream;
    CUresult result = REAL(cuCtxPushCurrent_v2)(context);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS) {
        result = asked == VGPU_SWAP_OUT ? leave(stream) : come_back(stream);
        REAL(cuStreamDestroy_v2)(stream);
    }
    REAL(cuCtxPopCurrent_v2)(&context);
    return result;
}

static CUresult obey(uint64_t asked)
{
    struct all all = add_up();
    bool away = all.away != 0;
    if (asked == VGPU_SWAP_FREE && !away)
        staging_free();
    if ((asked == VGPU_SWAP_OUT && !away && all.bytes) || (asked == VGPU_SWAP_IN && away))
        return move(asked, &all);
    return CUDA_SUCCESS;
}

static void tell(uint64_t word, CUresult result)
{
    struct all all = add_up();
    account_swapped(&(struct vgpu_slot){.swapped = word ? word : 1,
                                        .swap_error = (uint32_t)result,
                                        .swap_away = all.away != 0,
                                        .movable = all.bytes,
                                        .staged = staging_size()});
}

/* What was asked before it began is none of its business. */
static void *work(void *unused)
{
    bool swaps;
    uint64_t seen = account_swap(&swaps);
    CUresult last = CUDA_SUCCESS;
    capture_leave();
    tell(seen, CUDA_SUCCESS);
    for (uint64_t told = 0;; sleep_us(POLL_US)) {
        uint64_t word = account_swap(&swaps), bytes = atomic_load(&process()->blocks);
        if (!swaps && staging_size() && !add_up().away)
            staging_free();
        if (word != seen)
            last = obey(word & 0xff);
        if (word != seen || bytes != told)
            tell(word, last);
        seen = word;
        told = bytes;
    }
    return unused;
}

bool mover_start(void)
{
    struct process *in = process();
    uint64_t id;
    enum { NONE, STARTS, RUNS, FAILED };
    uint32_t none = NONE;
    if (atomic_compare_exchange_strong(&in->mover, &none, STARTS))
        atomic_store(&in->mover, thread_start(&id, work, NULL) ? RUNS : FAILED);
    return atomic_load(&in->mover) == RUNS;
}
