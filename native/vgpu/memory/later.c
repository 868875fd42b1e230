/* Linear memory that is freed in the order of a stream, which may be gone before the memory is: an event tells. */
#include "process/capture.h"
#include "charge/charge.h"
#include "charge/resident.h"
#include "process/log.h"

static CUevent mark(CUstream stream, bool per_thread)
{
    CUcontext context = NULL;
    if ((uintptr_t)stream > 2)
        REAL(cuStreamGetCtx)(stream, &context);
    CUevent event = event_make(KEY(context), CU_EVENT_DISABLE_TIMING);
    if (!event || REAL_IN(per_thread, cuEventRecord)(event, stream) == CUDA_SUCCESS)
        return event;
    REAL(cuEventDestroy_v2)(event);
    return NULL;
}

void later_free(const struct item *item, CUstream stream, bool per_thread)
{
    struct item later = *item;
    later.key = item_number();
    int mode = capture_leave();
    CUevent event = mark(stream, per_thread);
    capture_return(mode);
    later.kind = ITEM_LATER;
    later.other = KEY(event);
    later.inode = item->key;
    later.mark = item->other;
    if (event && item_put(&later))
        atomic_fetch_add(&process()->later, 1);
    else
        LOG_ONCE("no event for memory that is freed in stream order: it stays charged");
}

bool later_read(int position)
{
    bool found = false;
    for (uint64_t slot = 0; slot < item_slots(); slot++) {
        struct item item = {0};
        items_lock();
        const struct item *at = item_at(slot);
        if (at && at->kind == ITEM_LATER && at->position == position)
            item = *at;
        items_unlock();
        CUevent event = (CUevent)(uintptr_t)item.other;
        if (item.kind != ITEM_LATER || RESIDENT(cuEventQuery)(event) == CUDA_ERROR_NOT_READY ||
            !item_take(ITEM_LATER, item.key, &item))
            continue;
        REAL(cuEventDestroy_v2)(event);
        atomic_fetch_sub(&process()->later, 1);
        refund(&item);
        found = true;
    }
    return found;
}
