#include "mover.h"

#include "block.h"
#include "process/capture.h"
#include "staging.h"

#include <stdlib.h>

enum { POLL_US = 5000 };

/* What was moved last, in the order in which it lies in the host's memory. While calls are held up no block ends; one that
 * comes then is not on the list, and stays. */
static struct listed {
    CUdeviceptr at;
    uint64_t bytes;
} * list;
static size_t listed;
static bool away; /* in the host's memory alone */

struct all {
    uint64_t bytes, context; /* of one of them */
    size_t count;
};

/* Of all blocks, with a list of as many as there is `room` for. */
static struct all add_up(struct listed *out, size_t room)
{
    struct all all = {0};
    items_lock();
    EACH_ITEM (item)
        if (item->kind == ITEM_LINEAR && item->block) {
            if (all.count < room)
                out[all.count] = (struct listed){item->key, item->bytes};
            all.bytes += item->bytes;
            all.context = item->context;
            all.count++;
        }
    items_unlock();
    return all;
}

/* All out to the host, one behind the other, or in from there. */
static CUresult copy(char *host, CUstream stream, bool out)
{
    CUresult result = host ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < listed && result == CUDA_SUCCESS; host += list[i++].bytes)
        result = out ? REAL(cuMemcpyDtoHAsync_v2)(host, list[i].at, list[i].bytes, stream)
                     : REAL(cuMemcpyHtoDAsync_v2)(list[i].at, host, list[i].bytes, stream);
    CUresult end = REAL(cuStreamSynchronize)(stream);
    return result != CUDA_SUCCESS ? result : end;
}

static CUresult unmap_all(void)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < listed; i++) {
        CUresult one = block_unmap(list[i].at, list[i].bytes);
        result = one != CUDA_SUCCESS ? one : result;
    }
    return result;
}

static CUresult come_back(CUstream stream)
{
    CUdevice ordinal;
    CUresult result = REAL(cuCtxGetDevice)(&ordinal);
    for (size_t i = 0; i < listed && result == CUDA_SUCCESS; i++)
        result = block_map(list[i].at, list[i].bytes, ordinal);
    if (result == CUDA_SUCCESS)
        result = copy(staging_get(0), stream, false);
    away = result != CUDA_SUCCESS;
    if (away)
        unmap_all();
    else
        hold_open();
    return result;
}

/* The host's memory for all, and a list of them. NULL: there is none. */
static char *prepare(void)
{
    size_t room = add_up(NULL, 0).count;
    void *longer = realloc(list, (room + 1) * sizeof(*list));
    list = longer ? longer : list;
    struct all all = add_up(list, longer ? room : 0);
    listed = all.count < room ? all.count : room;
    return longer ? staging_get(all.bytes) : NULL;
}

static CUresult leave(CUstream stream)
{
    CUresult result = prepare() ? hold_close() : CUDA_ERROR_OUT_OF_MEMORY; /* while the program goes on */
    if (result != CUDA_SUCCESS)
        return result;
    result = copy(prepare(), stream, true);
    if (result != CUDA_SUCCESS) {
        hold_open();
        return result;
    }
    away = true;
    result = unmap_all();
    if (result != CUDA_SUCCESS) /* a block may be there in part: all come back */
        come_back(stream);
    return result;
}

static CUresult move(uint64_t asked)
{
    CUstream stream;
    CUresult result = REAL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING);
    if (result != CUDA_SUCCESS)
        return result;
    result = asked == VGPU_SWAP_OUT ? leave(stream) : come_back(stream);
    REAL(cuStreamDestroy_v2)(stream);
    return result;
}

static CUresult obey(uint64_t asked)
{
    struct all all = add_up(NULL, 0);
    if (asked == VGPU_SWAP_FREE && !away)
        staging_free();
    bool moves = asked == VGPU_SWAP_OUT ? !away && all.bytes : asked == VGPU_SWAP_IN && away;
    CUcontext context = (CUcontext)(uintptr_t)all.context;
    return moves ? IN_CONTEXT(context, move(asked), CUDA_ERROR_INVALID_CONTEXT) : CUDA_SUCCESS;
}

static void tell(uint64_t word, CUresult result)
{
    struct all all = add_up(NULL, 0);
    account_swapped(&(struct vgpu_slot){.swapped = word ? word : 1,
                                        .swap_error = (uint32_t)result,
                                        .swap_away = away,
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
        if (!swaps && staging_size() && !away)
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
