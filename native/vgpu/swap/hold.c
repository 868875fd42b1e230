#include "hold.h"

#include "charge/items.h"
#include "process/capture.h"
#include "staging.h"

#include <errno.h>

enum { OPEN, DRAINS, CLOSED, STEP_US = 200, LOOK_NS = 100000000 };

_Atomic bool hold_is_used;

static void wait(struct process *in, uint32_t seen)
{
    struct timespec look = {.tv_nsec = LOOK_NS};
    syscall(SYS_futex, &in->hold, FUTEX_WAIT_PRIVATE, seen, seen == DRAINS ? &look : NULL, NULL, 0);
}

bool hold_enter(void)
{
    struct process *in = process();
    int before = errno;
    while (in) {
        atomic_fetch_add(&in->inside, 1);
        uint32_t seen = atomic_load(&in->hold);
        if (seen == OPEN)
            break;
        atomic_fetch_sub(&in->inside, 1);
        /* The mover waits for the driver, and a kernel may wait for this call. */
        if (seen != DRAINS || now_ns(CLOCK_MONOTONIC) < atomic_load(&in->hold_until) ||
            !atomic_compare_exchange_strong(&in->hold, &seen, OPEN))
            wait(in, seen);
    }
    errno = before;
    return in != NULL;
}

void hold_leave(void)
{
    atomic_fetch_sub(&process()->inside, 1);
}

void hold_open(void)
{
    struct process *in = process();
    atomic_store(&in->hold, OPEN);
    syscall(SYS_futex, &in->hold, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* Of each context in turn: others may come and go meanwhile, and calls in them wait. */
static CUresult wait_for_work(void)
{
    CUresult result = CUDA_SUCCESS;
    for (uint64_t slot = 0; result == CUDA_SUCCESS && slot < item_slots(); slot++) {
        items_lock();
        const struct item *at = item_at(slot);
        bool is = at && (at->kind == ITEM_CONTEXT || at->kind == ITEM_PRIMARY);
        CUcontext context = is ? (CUcontext)(uintptr_t)at->context : NULL;
        items_unlock();
        if (context)
            result = IN_CONTEXT(context, REAL(cuCtxSynchronize)(), CUDA_SUCCESS);
    }
    return result;
}

static _Atomic bool waits;
static CUresult ended;

static void *wait_aside(void *unused)
{
    capture_leave();
    ended = wait_for_work();
    atomic_store(&waits, false);
    return unused;
}

static bool over(_Atomic bool *goes_on, uint64_t until)
{
    while (atomic_load(goes_on) && now_ns(CLOCK_MONOTONIC) < until)
        sleep_us(STEP_US);
    return !atomic_load(goes_on);
}

/* A kernel may never end: then a thread is left behind that waits for it, and the next time waits for that first. */
static CUresult wait_for_work_until(uint64_t until)
{
    static uint64_t aside;
    static bool is_aside;
    if (!over(&waits, until))
        return CUDA_ERROR_NOT_READY;
    if (is_aside)
        thread_join(aside);
    atomic_store(&waits, true);
    is_aside = thread_start(&aside, wait_aside, NULL);
    if (!is_aside) {
        atomic_store(&waits, false);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return over(&waits, until) ? ended : CUDA_ERROR_NOT_READY;
}

static bool captures(void)
{
    bool found = false;
    items_lock();
    EACH_ITEM (item)
        found = found || item->kind == ITEM_CAPTURE;
    items_unlock();
    return found;
}

CUresult hold_close(void)
{
    struct process *in = process();
    uint64_t until = now_ns(CLOCK_MONOTONIC) + HOLD_NS;
    atomic_store(&in->hold_until, until);
    atomic_store(&in->hold, DRAINS);
    while (atomic_load(&in->inside) && now_ns(CLOCK_MONOTONIC) < until)
        sleep_us(STEP_US);
    CUresult result = CUDA_ERROR_NOT_READY;
    if (captures()) /* a wait would end it */
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    else if (!atomic_load(&in->inside))
        result = wait_for_work_until(until);
    uint32_t drains = DRAINS;
    if (result == CUDA_SUCCESS && !atomic_compare_exchange_strong(&in->hold, &drains, CLOSED))
        result = CUDA_ERROR_NOT_READY;
    if (result != CUDA_SUCCESS)
        hold_open();
    return result;
}
