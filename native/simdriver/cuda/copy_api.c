/* The many names of a copy. */
#include "copy.h"
#include "stream.h"

static CUDA_MEMCPY3D line(uint64_t to, int to_type, uint64_t from, int from_type, size_t size)
{
    return (CUDA_MEMCPY3D){
        .srcMemoryType = from_type,
        .srcHost = (const void *)(uintptr_t)from,
        .srcDevice = from,
        .srcPitch = size,
        .dstMemoryType = to_type,
        .dstHost = (void *)(uintptr_t)to,
        .dstDevice = to,
        .dstPitch = size,
        .WidthInBytes = size,
        .Height = 1,
        .Depth = 1,
    };
}

static CUresult copy_line(uint64_t to, int to_type, uint64_t from, int from_type, size_t size,
                          CUstream stream, bool wait)
{
    CUDA_MEMCPY3D copy = line(to, to_type, from, from_type, size);
    return copy_submit(&copy, stream, wait);
}

#define AT(pointer) ((uint64_t)(uintptr_t)(pointer))

/* One direction: synchronous and not, on the legacy and on the per-thread default stream. */
#define LINE(name, to_c, to_type, from_c, from_type, suffix)                                                \
    CU_TWINS(_ptds, name##suffix, (to_c to, from_c from, size_t size),                                      \
             copy_line(AT(to), to_type, AT(from), from_type, size, OWN_DEFAULT, true))                      \
    CU_TWINS(_ptsz, name##Async##suffix, (to_c to, from_c from, size_t size, CUstream stream),              \
             copy_line(AT(to), to_type, AT(from), from_type, size, OWN(stream), false))

LINE(cuMemcpyHtoD, CUdeviceptr, CU_MEMORYTYPE_DEVICE, const void *, CU_MEMORYTYPE_HOST, _v2)
LINE(cuMemcpyDtoH, void *, CU_MEMORYTYPE_HOST, CUdeviceptr, CU_MEMORYTYPE_DEVICE, _v2)
LINE(cuMemcpyDtoD, CUdeviceptr, CU_MEMORYTYPE_DEVICE, CUdeviceptr, CU_MEMORYTYPE_DEVICE, _v2)
LINE(cuMemcpy, CUdeviceptr, CU_MEMORYTYPE_UNIFIED, CUdeviceptr, CU_MEMORYTYPE_UNIFIED, )

/* Contexts share addresses, so a copy between them is a copy. */
static CUresult copy_peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                          size_t size, CUstream stream, bool wait)
{
    CU_REQUIRE(handle_is(to_context, KIND_CONTEXT) && handle_is(from_context, KIND_CONTEXT),
               CUDA_ERROR_INVALID_CONTEXT);
    return copy_line(to, CU_MEMORYTYPE_DEVICE, from, CU_MEMORYTYPE_DEVICE, size, stream, wait);
}

#define PEER CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size

CU_TWINS(_ptds, cuMemcpyPeer, (PEER), copy_peer(to, to_context, from, from_context, size, OWN_DEFAULT, true))
CU_TWINS(_ptsz, cuMemcpyPeerAsync, (PEER, CUstream stream),
         copy_peer(to, to_context, from, from_context, size, OWN(stream), false))

static CUresult copy_plane(const CUDA_MEMCPY2D *plane, CUstream stream, bool wait)
{
    CU_ARGUMENT(plane);
    CUDA_MEMCPY3D copy = {
        .srcXInBytes = plane->srcXInBytes,
        .srcY = plane->srcY,
        .srcMemoryType = plane->srcMemoryType,
        .srcHost = plane->srcHost,
        .srcDevice = plane->srcDevice,
        .srcArray = plane->srcArray,
        .srcPitch = plane->srcPitch ? plane->srcPitch : plane->WidthInBytes,
        .dstXInBytes = plane->dstXInBytes,
        .dstY = plane->dstY,
        .dstMemoryType = plane->dstMemoryType,
        .dstHost = plane->dstHost,
        .dstDevice = plane->dstDevice,
        .dstArray = plane->dstArray,
        .dstPitch = plane->dstPitch ? plane->dstPitch : plane->WidthInBytes,
        .WidthInBytes = plane->WidthInBytes,
        .Height = plane->Height,
        .Depth = 1,
    };
    return copy_submit(&copy, stream, wait);
}

static CUresult copy_block(const CUDA_MEMCPY3D *block, CUstream stream, bool wait)
{
    CU_ARGUMENT(block);
    CUDA_MEMCPY3D copy = *block;
    copy.srcPitch = copy.srcPitch ? copy.srcPitch : copy.WidthInBytes;
    copy.dstPitch = copy.dstPitch ? copy.dstPitch : copy.WidthInBytes;
    return copy_submit(&copy, stream, wait);
}

#define SHAPED(name, type, function)                                                                        \
    CU_TWINS(_ptds, name, (const type *copy), function(copy, OWN_DEFAULT, true))
#define SHAPED_ASYNC(name, type, function)                                                                  \
    CU_TWINS(_ptsz, name, (const type *copy, CUstream stream), function(copy, OWN(stream), false))

SHAPED(cuMemcpy2D_v2, CUDA_MEMCPY2D, copy_plane)
SHAPED(cuMemcpy2DUnaligned_v2, CUDA_MEMCPY2D, copy_plane)
SHAPED_ASYNC(cuMemcpy2DAsync_v2, CUDA_MEMCPY2D, copy_plane)
SHAPED(cuMemcpy3D_v2, CUDA_MEMCPY3D, copy_block)
SHAPED_ASYNC(cuMemcpy3DAsync_v2, CUDA_MEMCPY3D, copy_block)
SHAPED(cuMemcpy3DPeer, CUDA_MEMCPY3D, copy_block)
SHAPED_ASYNC(cuMemcpy3DPeerAsync, CUDA_MEMCPY3D, copy_block)

/* Copies that begin or end in an array: at a byte of its first row. */
static CUresult copy_array(CUarray to, size_t to_x, uint64_t to_at, int to_type, CUarray from, size_t from_x,
                           uint64_t from_at, int from_type, size_t size, CUstream stream, bool wait)
{
    CUDA_MEMCPY3D copy = line(to_at, to_type, from_at, from_type, size);
    copy.dstArray = to;
    copy.dstXInBytes = to_x;
    copy.srcArray = from;
    copy.srcXInBytes = from_x;
    return copy_submit(&copy, stream, wait);
}

#define IN_ARRAY CU_MEMORYTYPE_ARRAY
#define ON_DEVICE CU_MEMORYTYPE_DEVICE
#define ON_HOST CU_MEMORYTYPE_HOST

#define ARRAY_SYNC(name, arguments, to, to_x, to_at, to_type, from, from_x, from_at, from_type)             \
    CU_TWINS(                                                                                               \
        _ptds, name##_v2, arguments,                                                                        \
        copy_array(to, to_x, to_at, to_type, from, from_x, from_at, from_type, size, OWN_DEFAULT, true))
#define ARRAY_ASYNC(name, arguments, to, to_x, to_at, to_type, from, from_x, from_at, from_type)            \
    CU_TWINS(                                                                                               \
        _ptsz, name##_v2, arguments,                                                                        \
        copy_array(to, to_x, to_at, to_type, from, from_x, from_at, from_type, size, OWN(stream), false))

ARRAY_SYNC(cuMemcpyDtoA, (CUarray to, size_t x, CUdeviceptr from, size_t size), to, x, 0, IN_ARRAY, NULL, 0,
           from, ON_DEVICE)
ARRAY_SYNC(cuMemcpyAtoD, (CUdeviceptr to, CUarray from, size_t x, size_t size), NULL, 0, to, ON_DEVICE, from,
           x, 0, IN_ARRAY)
ARRAY_SYNC(cuMemcpyHtoA, (CUarray to, size_t x, const void *from, size_t size), to, x, 0, IN_ARRAY, NULL, 0,
           AT(from), ON_HOST)
ARRAY_SYNC(cuMemcpyAtoH, (void *to, CUarray from, size_t x, size_t size), NULL, 0, AT(to), ON_HOST, from, x,
           0, IN_ARRAY)
ARRAY_SYNC(cuMemcpyAtoA, (CUarray to, size_t to_x, CUarray from, size_t x, size_t size), to, to_x, 0,
           IN_ARRAY, from, x, 0, IN_ARRAY)
ARRAY_ASYNC(cuMemcpyHtoAAsync, (CUarray to, size_t x, const void *from, size_t size, CUstream stream), to, x,
            0, IN_ARRAY, NULL, 0, AT(from), ON_HOST)
ARRAY_ASYNC(cuMemcpyAtoHAsync, (void *to, CUarray from, size_t x, size_t size, CUstream stream), NULL, 0,
            AT(to), ON_HOST, from, x, 0, IN_ARRAY)
