/* A context takes some hundred MiB when it is made: an amount that the host has measured, reserved before. */
#include "charge/resident.h"
#include "module.h"
#include "swap/block.h"
#include "time/pacer.h"

static uint64_t overhead_of(int position)
{
    struct vgpu_quota_device device;
    return account_device(position, &device) ? device.context_overhead : 0;
}

struct making {
    struct target to;
    uint64_t bytes;
    bool charged;
};

/* False: it does not fit. */
static bool begin(CUdevice ordinal, struct making *making)
{
    *making = (struct making){0};
    if (!target_device(ordinal, &making->to))
        return true; /* for the driver to refuse */
    making->bytes = overhead_of(making->to.position);
    making->charged = charge(making->to.position, making->bytes);
    return making->charged;
}

static void end(const struct making *making, enum kind kind, CUcontext context, CUresult result)
{
    uint64_t key = kind == ITEM_PRIMARY ? (uint64_t)making->to.ordinal + 1 : KEY(context);
    struct item item = {.kind = (uint8_t)kind,
                        .key = key,
                        .position = (uint8_t)making->to.position,
                        .context = KEY(context),
                        .bytes = making->bytes};
    if (!making->charged)
        return;
    items_lock();
    bool enters = result == CUDA_SUCCESS && !item_find(kind, key);
    if (enters)
        item_insert(&item); /* where there is no room for it, it counts for as long as the process lives */
    items_unlock();
    if (enters) {
        atomic_fetch_add(&process()->contexts, 1);
        kernels_forget(); /* what was loaded in the others is not in this one */
    }
    account_settle(making->to.position, making->bytes, enters ? making->bytes : 0);
}

#define CREATE(name, parameters, arguments)                                                                 \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        struct making making;                                                                               \
        if (!begin(device, &making))                                                                        \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                \
        CUcontext made = NULL, *place = out ? &made : NULL;                                                 \
        CUresult result = WITH_ROOM(making.to.position, 0, REAL(name) arguments);                           \
        end(&making, ITEM_CONTEXT, made, result);                                                           \
        return HAND_OUT(out, made, result);                                                                 \
    }

CREATE(cuCtxCreate, (CUcontext * out, unsigned int flags, CUdevice device), (place, flags, device))
CREATE(cuCtxCreate_v2, (CUcontext * out, unsigned int flags, CUdevice device), (place, flags, device))
CREATE(cuCtxCreate_v3, (CUcontext * out, void *list, int count, unsigned int flags, CUdevice device),
       (place, list, count, flags, device))
CREATE(cuCtxCreate_v4, (CUcontext * out, void *more, unsigned int flags, CUdevice device),
       (place, more, flags, device))
CREATE(cuGLCtxCreate, (CUcontext * out, unsigned int flags, CUdevice device), (place, flags, device))
CREATE(cuGLCtxCreate_v2, (CUcontext * out, unsigned int flags, CUdevice device), (place, flags, device))
CREATE(cuVDPAUCtxCreate, (CUcontext * out, unsigned int flags, CUdevice device, unsigned int v, void *f),
       (place, flags, device, v, f))
CREATE(cuVDPAUCtxCreate_v2, (CUcontext * out, unsigned int flags, CUdevice device, unsigned int v, void *f),
       (place, flags, device, v, f))

static void rename_context(uint64_t from, uint64_t to)
{
    items_lock();
    EACH_ITEM (item)
        if (item->context == from)
            item->context = to;
    items_unlock();
}

/* A context is about to end: a new one at its address is not to be taken for it. Handles are addresses of structures, so
 * their lowest bit is free. */
static void doom(uint64_t context)
{
    rename_context(context, context | 1);
}

static bool is_of(const struct item *item, uint64_t context)
{
    return item->context == context;
}

/* Refunds and removes what ended with it; `ended`: the driver did end it. */
static void bury(uint64_t context, bool ended)
{
    struct item item;
    if (!ended) {
        rename_context(context | 1, context);
        return;
    }
    kernels_forget();
    for (uint64_t slot = 0; item_take_next(&slot, is_of, context | 1, &item);) {
        if (item.kind == ITEM_CONTEXT || item.kind == ITEM_PRIMARY)
            atomic_fetch_sub(&process()->contexts, 1);
        if (item.kind == ITEM_LATER) /* its event went with the context */
            atomic_fetch_sub(&process()->later, 1);
        if (item.block)
            block_end(&item);
        refund(&item);
    }
}

/* All that was made in a context ends with it. */
static CUresult destroy(CUcontext context, CUresult (*call)(CUcontext))
{
    if (!context)
        return call(context);
    pacer_forget(KEY(context));
    doom(KEY(context));
    CUresult result = call(context);
    bury(KEY(context), result == CUDA_SUCCESS);
    return result;
}

WRAP(cuCtxDestroy, (CUcontext context), HELD(destroy(context, REAL(cuCtxDestroy))))
WRAP(cuCtxDestroy_v2, (CUcontext context), HELD(destroy(context, REAL(cuCtxDestroy_v2))))

/* The old reference counts: cuCtxAttach may have added one, and only the last ends the context. */
static CUresult detach(CUcontext context)
{
    unsigned int version;
    pacer_forget(KEY(context));
    CUresult result = REAL(cuCtxDetach)(context);
    if (result == CUDA_SUCCESS && context && REAL(cuCtxGetApiVersion)(context, &version) != CUDA_SUCCESS) {
        doom(KEY(context));
        bury(KEY(context), true);
    }
    return result;
}

WRAP(cuCtxDetach, (CUcontext context), HELD(detach(context)))

static bool is_active(CUdevice ordinal)
{
    unsigned int flags;
    int active = 0;
    return REAL(cuDevicePrimaryCtxGetState)(ordinal, &flags, &active) == CUDA_SUCCESS && active;
}

/* What the driver does to a device's primary context and what the books say of it are one step: else one thread counts
 * the end of a context that another has just made. The driver holds a lock of its own for as long. */
static size_t turn_of(CUdevice device)
{
    return device >= 0 && device < ORDINALS ? offsetof(struct process, primaries[device]) : 0;
}

/* A primary context is one for all who retain it. */
static CUresult retain_primary(CUcontext *out, CUdevice device)
{
    struct making making = {0};
    struct item item;
    if (item_get(ITEM_PRIMARY, (uint64_t)device + 1, &item) && is_active(device))
        return REAL(cuDevicePrimaryCtxRetain)(out, device);
    if (!begin(device, &making))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUcontext made = NULL;
    CUresult result = REAL(cuDevicePrimaryCtxRetain)(out ? &made : NULL, device);
    end(&making, ITEM_PRIMARY, made, result);
    return HAND_OUT(out, made, result);
}

CU_API CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    struct target to;
    CUresult result = IN_TURN(turn_of(device), retain_primary(out, device));
    bool again = result == CUDA_ERROR_OUT_OF_MEMORY && target_device(device, &to) &&
                 resident_make_room(to.position, overhead_of(to.position));
    return again ? IN_TURN(turn_of(device), retain_primary(out, device)) : result;
}

static CUresult end_primary(CUdevice device, CUresult (*call)(CUdevice))
{
    struct item item;
    if (!item_get(ITEM_PRIMARY, (uint64_t)device + 1, &item))
        return call(device);
    pacer_forget(item.context);
    doom(item.context);
    CUresult result = call(device);
    bool ended = result == CUDA_SUCCESS && !is_active(device);
    bury(item.context, ended);
    if (ended)
        reclaim(item.position);
    return result;
}

#define END_PRIMARY(name)                                                                                   \
    WRAP(name, (CUdevice device), HELD(IN_TURN(turn_of(device), end_primary(device, REAL(name)))))

END_PRIMARY(cuDevicePrimaryCtxRelease)
END_PRIMARY(cuDevicePrimaryCtxRelease_v2)
END_PRIMARY(cuDevicePrimaryCtxReset)
END_PRIMARY(cuDevicePrimaryCtxReset_v2)

/* A green context is a part of the primary one, which it makes if need be. */
static CUresult create_green(CUgreenCtx *out, void *resources, CUdevice device, unsigned int flags)
{
    struct making making = {0};
    struct item item;
    if (!item_get(ITEM_PRIMARY, (uint64_t)device + 1, &item) && !is_active(device) &&
        !begin(device, &making))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUgreenCtx made = NULL; /* another thread may change what the program has */
    CUresult result = REAL(cuGreenCtxCreate)(out ? &made : NULL, resources, device, flags);
    CUcontext primary = NULL;
    /* The primary context's handle is had by retaining it, which changes nothing: it is active now. */
    if (result == CUDA_SUCCESS && making.charged && is_active(device) &&
        REAL(cuDevicePrimaryCtxRetain)(&primary, device) == CUDA_SUCCESS)
        REAL(cuDevicePrimaryCtxRelease_v2)(device);
    end(&making, ITEM_PRIMARY, primary, primary ? result : CUDA_ERROR_OUT_OF_MEMORY);
    if (result == CUDA_SUCCESS) {
        item = (struct item){.kind = ITEM_GREEN, .key = KEY(made), .other = (uint64_t)device};
        item_put(&item);
        atomic_store(&process()->greens, true);
        *out = made;
    }
    return result;
}

WRAP(cuGreenCtxCreate, (CUgreenCtx * out, void *resources, CUdevice device, unsigned int flags),
     IN_TURN(turn_of(device), create_green(out, resources, device, flags)))

static CUresult destroy_green(CUgreenCtx context, CUdevice device)
{
    struct item item;
    CUresult result = REAL(cuGreenCtxDestroy)(context);
    if (result == CUDA_SUCCESS && item_get(ITEM_PRIMARY, (uint64_t)device + 1, &item) &&
        !is_active(device)) {
        doom(item.context);
        bury(item.context, true);
    }
    return result;
}

CU_API CUresult cuGreenCtxDestroy(CUgreenCtx context)
{
    struct item item;
    if (!item_take(ITEM_GREEN, KEY(context), &item))
        return REAL(cuGreenCtxDestroy)(context);
    CUdevice device = (CUdevice)item.other;
    CUresult result = HELD(IN_TURN(turn_of(device), destroy_green(context, device)));
    if (result != CUDA_SUCCESS)
        item_put(&item);
    return result;
}
