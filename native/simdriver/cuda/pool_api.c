/* cuMemAllocAsync, cuMemPool* and their kin. */
#include "graph.h"
#include "pool.h"
#include "stream.h"

static CUresult allocate(CUdeviceptr *out, size_t size, struct pool *pool, CUstream handle)
{
    struct memory *memory;
    CU_CONTEXT(current);
    CU_STREAM(stream, handle);
    CU_ARGUMENT(out);
    if (!pool)
        CU_TRY(pool_default(stream->context->device, &pool));
    if (stream->capture)
        return capture_allocate(stream, pool, size, out);
    CU_TRY(pool_allocate(pool, size, stream, &memory));
    *out = memory->range.base;
    return CUDA_SUCCESS;
}

static CUresult allocate_current(CUdeviceptr *out, size_t size, CUstream handle)
{
    CU_STREAM(stream, handle);
    return allocate(out, size, stream->context->device->pool, handle);
}

CU_TWINS(_ptsz, cuMemAllocAsync, (CUdeviceptr * out, size_t size, CUstream stream),
         allocate_current(out, size, OWN(stream)))

static CUresult allocate_from(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream)
{
    CU_REQUIRE(handle_is(pool, KIND_POOL) && !pool->imported, CUDA_ERROR_INVALID_VALUE);
    return allocate(out, size, pool, stream);
}

CU_TWINS(_ptsz, cuMemAllocFromPoolAsync,
         (CUdeviceptr * out, size_t size, CUmemoryPool pool, CUstream stream),
         allocate_from(out, size, pool, OWN(stream)))

static CUresult free_async(CUdeviceptr address, CUstream handle)
{
    CU_CONTEXT(current);
    CU_STREAM(stream, handle);
    struct memory *memory = memory_find(address);
    CU_ARGUMENT(memory && memory->range.base == address && !memory->freed_on);
    CU_ARGUMENT(memory->kind == MEMORY_POOL || memory->kind == MEMORY_DEVICE ||
                memory->kind == MEMORY_MANAGED || (memory->kind == MEMORY_IMPORTED && memory->pool));
    if (stream->capture)
        return capture_free(stream, address);
    return pool_free_later(memory, stream);
}

CU_TWINS(_ptsz, cuMemFreeAsync, (CUdeviceptr address, CUstream stream), free_async(address, OWN(stream)))

static CUresult create(CUmemoryPool *out, const CUmemPoolProps *properties)
{
    CU_ARGUMENT(out && properties && properties->allocType == CU_MEM_ALLOCATION_TYPE_PINNED);
    CU_REQUIRE(properties->handleTypes == CU_MEM_HANDLE_TYPE_NONE ||
                   properties->handleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
               CUDA_ERROR_NOT_SUPPORTED);
    CU_REQUIRE(properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_NOT_SUPPORTED);
    struct device *device = device_at(properties->location.id);
    CU_REQUIRE(device, CUDA_ERROR_INVALID_DEVICE);
    CU_TRY(pool_create(device, out));
    (*out)->max_size = round_up(properties->maxSize, PAGE);
    (*out)->shared = properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemPoolCreate, (CUmemoryPool * out, const CUmemPoolProps *properties), create(out, properties))

/* What is allocated from it stays; the pool goes with the last of that. */
static CUresult destroy(CUmemoryPool pool)
{
    CU_ARGUMENT(handle_is(pool, KIND_POOL) && !pool->is_default && !pool->dead);
    if (pool->device->pool == pool)
        pool->device->pool = pool->device->default_pool;
    if (pool->used || pool->freed)
        pool->dead = true;
    else
        pool_destroy(pool);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemPoolDestroy, (CUmemoryPool pool), destroy(pool))

static CUresult trim(CUmemoryPool pool, size_t keep)
{
    CU_ARGUMENT(handle_is(pool, KIND_POOL));
    pool_trim(pool, keep);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep), trim(pool, keep))

static CUresult get_attribute(CUmemoryPool pool, int attribute, void *value)
{
    CU_ARGUMENT(handle_is(pool, KIND_POOL) && value);
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = pool->reuse[attribute - 1];
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *(uint64_t *)value = pool->threshold;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        *(uint64_t *)value = pool->reserved;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        *(uint64_t *)value = pool->reserved_high;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *(uint64_t *)value = pool->used;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *(uint64_t *)value = pool->used_high;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CU_EXPORT(cuMemPoolGetAttribute, (CUmemoryPool pool, int attribute, void *value),
          get_attribute(pool, attribute, value))

/* The high-water marks can only be reset. */
static CUresult set_attribute(CUmemoryPool pool, int attribute, const void *value)
{
    CU_ARGUMENT(handle_is(pool, KIND_POOL) && value);
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool->reuse[attribute - 1] = *(const int *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool->threshold = *(const uint64_t *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        CU_ARGUMENT(*(const uint64_t *)value == 0);
        pool->reserved_high = pool->reserved;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        CU_ARGUMENT(*(const uint64_t *)value == 0);
        pool->used_high = pool->used;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CU_EXPORT(cuMemPoolSetAttribute, (CUmemoryPool pool, int attribute, void *value),
          set_attribute(pool, attribute, value))

/* All devices of the process reach all of its memory here. */
static CUresult set_access(CUmemoryPool pool, const CUmemAccessDesc *list, size_t count)
{
    CU_ARGUMENT(handle_is(pool, KIND_POOL) && list && count);
    for (size_t i = 0; i < count; i++) {
        CU_ARGUMENT(list[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE);
        CU_REQUIRE(device_at(list[i].location.id), CUDA_ERROR_INVALID_DEVICE);
    }
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemPoolSetAccess, (CUmemoryPool pool, const CUmemAccessDesc *list, size_t count),
          set_access(pool, list, count))

static CUresult get_access(int *flags, CUmemoryPool pool, const CUmemLocation *location)
{
    CU_ARGUMENT(flags && handle_is(pool, KIND_POOL) && location);
    CU_REQUIRE(location->type == CU_MEM_LOCATION_TYPE_DEVICE && device_at(location->id),
               CUDA_ERROR_INVALID_DEVICE);
    *flags = CU_MEM_ACCESS_READWRITE;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemPoolGetAccess, (int *flags, CUmemoryPool pool, CUmemLocation *location),
          get_access(flags, pool, location))

static CUresult get_default(CUmemoryPool *out, struct device *device, bool current)
{
    CU_ARGUMENT(out);
    CU_REQUIRE(device, CUDA_ERROR_INVALID_DEVICE);
    CU_TRY(pool_default(device, out));
    if (current)
        *out = device->pool;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuDeviceGetDefaultMemPool, (CUmemoryPool * out, CUdevice device),
          get_default(out, device_at(device), false))
CU_EXPORT(cuDeviceGetMemPool, (CUmemoryPool * out, CUdevice device),
          get_default(out, device_at(device), true))

static CUresult set_pool(struct device *device, CUmemoryPool pool)
{
    CU_REQUIRE(device, CUDA_ERROR_INVALID_DEVICE);
    CU_ARGUMENT(handle_is(pool, KIND_POOL) && pool->device == device);
    CUmemoryPool unused;
    CU_TRY(pool_default(device, &unused));
    device->pool = pool;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuDeviceSetMemPool, (CUdevice device, CUmemoryPool pool), set_pool(device_at(device), pool))

/* CUDA 13 names pools by location and type of memory; there are pools of devices only. */
static CUresult pool_at(CUmemoryPool *out, const CUmemLocation *location, int type, bool current)
{
    CU_ARGUMENT(location);
    CU_REQUIRE(location->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED,
               CUDA_ERROR_NOT_SUPPORTED);
    return get_default(out, device_at(location->id), current);
}

CU_EXPORT(cuMemGetDefaultMemPool, (CUmemoryPool * out, CUmemLocation *location, int type),
          pool_at(out, location, type, false))
CU_EXPORT(cuMemGetMemPool, (CUmemoryPool * out, CUmemLocation *location, int type),
          pool_at(out, location, type, true))
