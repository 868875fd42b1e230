#include "charge.h"

#include "process/capture.h"
#include "gauge.h"
#include "process/log.h"
#include "slice/share.h"

enum { WAITS = 4 }; /* after so many, what was freed is taken for given back or kept on purpose */

/* A MIG device has a UUID of its own, which the first version of the call does not tell. */
static bool read_uuid(CUdevice ordinal, CUuuid *uuid)
{
    CUresult result = REAL(cuDeviceGetUuid_v2)(uuid, ordinal);
    if (result == CUDA_ERROR_NOT_SUPPORTED)
        result = REAL(cuDeviceGetUuid)(uuid, ordinal);
    return result == CUDA_SUCCESS;
}

bool target_device(CUdevice ordinal, struct target *out)
{
    struct process *in = process();
    CUuuid uuid;
    *out = (struct target){.position = NO_POSITION, .ordinal = ordinal};
    if (!in || ordinal < 0 || ordinal >= ORDINALS)
        return read_uuid(ordinal, &uuid); /* no accounts: denied, if the driver knows the device at all */
    uint8_t known = atomic_load_explicit(&in->positions[ordinal], memory_order_relaxed);
    if (!known) {
        if (!read_uuid(ordinal, &uuid))
            return false;
        int position = account_position(uuid.bytes);
        if (position == NO_POSITION) {
            LOG_ONCE("CUDA device %d is not in the quota: its memory cannot be allocated", ordinal);
            return true;
        }
        known = (uint8_t)(position + 1);
        atomic_store_explicit(&in->positions[ordinal], known, memory_order_relaxed);
    }
    out->position = known - 1;
    return true;
}

/* Of the context, which is current. */
static bool target_of(CUcontext context, struct target *out)
{
    CUdevice ordinal;
    struct process *in = process();
    struct item item;
    if (REAL(cuCtxGetDevice)(&ordinal) != CUDA_SUCCESS || !target_device(ordinal, out))
        return false;
    out->context = KEY(context);
    /* What is made in a green context lives as long as the primary one. */
    if (in && atomic_load_explicit(&in->greens, memory_order_relaxed) &&
        !item_get(ITEM_CONTEXT, out->context, &item) && item_get(ITEM_PRIMARY, (uint64_t)ordinal + 1, &item))
        out->context = item.context;
    return true;
}

bool target_current(struct target *out)
{
    CUcontext context;
    return REAL(cuCtxGetCurrent)(&context) == CUDA_SUCCESS && context && target_of(context, out);
}

/* The three handles below 3 mean default streams of the current context; any other says itself which context it is of. */
bool target_stream(CUstream stream, struct target *out)
{
    CUcontext context, current = NULL;
    if ((uintptr_t)stream <= 2 || REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS)
        return target_current(out);
    if (REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current == context)
        return target_of(context, out);
    return IN_CONTEXT(context, target_of(context, out), target_current(out));
}

CUevent event_make(uint64_t context, unsigned int flags)
{
    CUevent event = NULL;
    type_cuEventCreate make = REAL(cuEventCreate);
    CUresult result =
        context ? IN_CONTEXT((CUcontext)(uintptr_t)context, make(&event, flags), CUDA_ERROR_INVALID_CONTEXT)
                : make(&event, flags);
    return result == CUDA_SUCCESS ? event : NULL;
}

bool charge(int position, uint64_t bytes)
{
    bool granted = charge_quietly(position, bytes);
    if (!granted)
        charge_refused(position);
    return granted;
}

void charge_refused(int position)
{
    account_count(position, offsetof(struct vgpu_budget, refused));
}

bool charge_quietly(int position, uint64_t bytes)
{
    enum verdict verdict = account_reserve(position, bytes);
    if (verdict == ACCOUNT_FULL && reclaim(position))
        verdict = account_reserve(position, bytes);
    return verdict == ACCOUNT_GRANTED;
}

bool reclaim(int position)
{
    struct process *in = process();
    int mode = capture_leave();
    bool later = in && atomic_load(&in->later) && later_read(position);
    bool closed = in && atomic_load(&in->exported) && exports_read(position);
    bool shrank = gauges_read(position);
    capture_return(mode);
    return shrank || later || closed;
}

void reclaim_soon(void)
{
    struct process *in = process();
    if (in)
        atomic_store_explicit(&in->stale, WAITS, memory_order_relaxed);
}

void reclaim_after_wait(void)
{
    struct process *in = process();
    uint32_t tries = in ? atomic_load_explicit(&in->stale, memory_order_relaxed) : 0;
    if (!tries)
        return;
    atomic_store_explicit(&in->stale, tries - 1, memory_order_relaxed);
    for (int position = 0; position < VGPU_DEVICES; position++)
        if (in->own[position].committed)
            reclaim(position);
}

bool charge_foreign(CUdeviceptr address, struct item *item)
{
    struct target to = {.position = NO_POSITION};
    CUdeviceptr base;
    size_t size;
    uint64_t bytes = 0, largest = share_largest();
    int ordinal = -1;
    if (REAL(cuMemGetAddressRange_v2)(&base, &size, address) == CUDA_SUCCESS)
        bytes = largest > size ? largest : size;
    if (REAL(cuPointerGetAttribute)(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) !=
            CUDA_SUCCESS ||
        ordinal < 0 || !target_device(ordinal, &to))
        return true; /* not of a device */
    bytes = round_capped(bytes, PAGE);
    if (!charge(to.position, bytes))
        return false;
    account_commit(to.position, bytes);
    item->position = (uint8_t)to.position;
    item->bytes = bytes;
    item->imported = 0;
    return true;
}
