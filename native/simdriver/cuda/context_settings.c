/* Limits, flags and other settings of contexts; peers; primary contexts. */
#include "driver.h"
#include "engine.h"

static CUresult set_limit(int limit, size_t value)
{
    CU_CONTEXT(context);
    CU_REQUIRE(limit >= 0 && limit < CU_LIMIT_COUNT, CUDA_ERROR_UNSUPPORTED_LIMIT);
    if (limit == CU_LIMIT_STACK_SIZE)
        CU_TRY(context_local(context, value));
    if (limit == CU_LIMIT_MALLOC_HEAP_SIZE) {
        uint64_t heap = value > 8 * MIB ? value - 8 * MIB : 0; /* the first 8 MiB are in the context's own */
        if (heap > context->heap_charged)
            CU_TRY(ledger_charge(context->device, heap - context->heap_charged));
        else
            ledger_refund(context->device, context->heap_charged - heap);
        context->heap_charged = heap;
    }
    context->limits[limit] = value;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuCtxSetLimit, (int limit, size_t value), set_limit(limit, value))

static CUresult get_limit(size_t *value, int limit)
{
    CU_CONTEXT(context);
    CU_ARGUMENT(value);
    CU_REQUIRE(limit >= 0 && limit < CU_LIMIT_COUNT, CUDA_ERROR_UNSUPPORTED_LIMIT);
    *value = context->limits[limit];
    return CUDA_SUCCESS;
}

CU_EXPORT(cuCtxGetLimit, (size_t * value, int limit), get_limit(value, limit))

/* A function that reads or writes one member of the current context. */
#define GETTER(name, type, expression)                                                                      \
    static CUresult get_##name(type *out)                                                                   \
    {                                                                                                       \
        CU_CONTEXT(context);                                                                                \
        CU_ARGUMENT(out);                                                                                   \
        *out = (type)(expression);                                                                          \
        return CUDA_SUCCESS;                                                                                \
    }                                                                                                       \
    CU_EXPORT(name, (type * out), get_##name(out))

#define SETTER(name, type, member)                                                                          \
    static CUresult set_##name(type value)                                                                  \
    {                                                                                                       \
        CU_CONTEXT(context);                                                                                \
        context->member = value;                                                                            \
        return CUDA_SUCCESS;                                                                                \
    }                                                                                                       \
    CU_EXPORT(name, (type value), set_##name(value))

GETTER(cuCtxGetFlags, unsigned int, context->flags)
SETTER(cuCtxSetFlags, unsigned int, flags)
GETTER(cuCtxGetCacheConfig, int, context->cache_config)
SETTER(cuCtxSetCacheConfig, int, cache_config)
GETTER(cuCtxGetSharedMemConfig, int, context->shared_config)
SETTER(cuCtxSetSharedMemConfig, int, shared_config)

static CUresult get_version(struct context *context, unsigned int *version)
{
    context = context ? context : context_current();
    CU_REQUIRE(handle_is(context, KIND_CONTEXT), CUDA_ERROR_INVALID_CONTEXT);
    CU_ARGUMENT(version);
    *version = 3020;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuCtxGetApiVersion, (CUcontext context, unsigned int *version), get_version(context, version))

static CUresult get_priorities(int *least, int *greatest)
{
    CU_CONTEXT(context);
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuCtxGetStreamPriorityRange, (int *least, int *greatest), get_priorities(least, greatest))

/* All memory of the process lies in one address space: access is a matter of bookkeeping. */
static CUresult set_peer(struct context *peer, bool enable)
{
    CU_CONTEXT(context);
    CU_REQUIRE(handle_is(peer, KIND_CONTEXT), CUDA_ERROR_INVALID_CONTEXT);
    CU_REQUIRE(peer->device != context->device && !peer->device->mig && !context->device->mig,
               CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    uint64_t bit = UINT64_C(1) << peer->device->ordinal;
    if (enable)
        CU_REQUIRE(!(context->peers & bit), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    else
        CU_REQUIRE(context->peers & bit, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    context->peers ^= bit;
    return CUDA_SUCCESS;
}

CU_API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
    CU_ARGUMENT(flags == 0);
    CU_CALL(set_peer(peer, true));
}

CU_EXPORT(cuCtxDisablePeerAccess, (CUcontext peer), set_peer(peer, false))

CUresult primary_retain(CUcontext *out, struct device *device)
{
    CU_ARGUMENT(out);
    CU_REQUIRE(device, CUDA_ERROR_INVALID_DEVICE);
    if (!device->primary) {
        CU_TRY(context_create(device, device->primary_flags, &device->primary));
        device->primary->primary = true;
    }
    device->primary->retained++;
    *out = device->primary;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuDevicePrimaryCtxRetain, (CUcontext * out, CUdevice device),
          primary_retain(out, device_at(device)))

static CUresult reset(struct device *device)
{
    CU_REQUIRE(device, CUDA_ERROR_INVALID_DEVICE);
    if (device->primary)
        context_destroy(device->primary);
    device->primary = NULL;
    return CUDA_SUCCESS;
}

CUresult primary_release(struct device *device)
{
    CU_REQUIRE(device, CUDA_ERROR_INVALID_DEVICE);
    CU_REQUIRE(device->primary, CUDA_ERROR_INVALID_CONTEXT);
    return --device->primary->retained == 0 ? reset(device) : CUDA_SUCCESS;
}

CU_EXPORT(cuDevicePrimaryCtxRelease_v2, (CUdevice device), primary_release(device_at(device)))
CU_EXPORT(cuDevicePrimaryCtxRelease, (CUdevice device), primary_release(device_at(device)))
CU_EXPORT(cuDevicePrimaryCtxReset_v2, (CUdevice device), reset(device_at(device)))
CU_EXPORT(cuDevicePrimaryCtxReset, (CUdevice device), reset(device_at(device)))

static CUresult set_primary_flags(struct device *device, unsigned int flags)
{
    CU_REQUIRE(device, CUDA_ERROR_INVALID_DEVICE);
    device->primary_flags = flags;
    if (device->primary)
        device->primary->flags = flags;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned int flags),
          set_primary_flags(device_at(device), flags))
CU_EXPORT(cuDevicePrimaryCtxSetFlags, (CUdevice device, unsigned int flags),
          set_primary_flags(device_at(device), flags))

static CUresult primary_state(struct device *device, unsigned int *flags, int *active)
{
    CU_REQUIRE(device, CUDA_ERROR_INVALID_DEVICE);
    CU_ARGUMENT(flags && active);
    *flags = device->primary_flags;
    *active = device->primary != NULL;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned int *flags, int *active),
          primary_state(device_at(device), flags, active))
