/* Settings of memory, and copies within a device: what multiprocessors may do, so that it counts like a kernel, and waits
 * at the gate. Copies from and to the host are the copy engines' work; where it is not known which it is, it counts. */
#include "gate.h"

static __attribute__((noinline)) bool is_open(void)
{
    return window_is_open();
}

#define WORK_OF(name, parameters, own, arguments, stream, per_thread, enter, counts)                        \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        own;                                                                                                \
        struct launch launch;                                                                               \
        if (is_open() || !(counts))                                                                         \
            return REAL(name) arguments;                                                                    \
        CUresult result = enter(&launch, stream, per_thread);                                               \
        if (result != CUDA_SUCCESS)                                                                         \
            return result;                                                                                  \
        result = REAL(name) arguments;                                                                      \
        gate_leave(&launch, result);                                                                        \
        return result;                                                                                      \
    }

#define WORK(name, parameters, arguments, stream, per_thread, enter, counts)                                \
    WORK_OF(name, parameters, (void)0, arguments, stream, per_thread, enter, counts)

#define WITHOUT(...) __VA_ARGS__

/* Of a width: on the two default streams, and on one that is named. */
#define SETTING(name, suffix, types, values)                                                                \
    WORK(name##suffix, (WITHOUT types), (WITHOUT values), NULL, false, gate_enter, true)                    \
    WORK(name##suffix##_ptds, (WITHOUT types), (WITHOUT values), NULL, true, gate_enter, true)              \
    WORK(name##Async, (WITHOUT types, CUstream stream), (WITHOUT values, stream), stream, false,            \
         gate_enter, true)                                                                                  \
    WORK(name##Async_ptsz, (WITHOUT types, CUstream stream), (WITHOUT values, stream), stream, true,        \
         gate_enter, true)

#define WIDTH(bits, type)                                                                                   \
    WORK(cuMemsetD##bits, (unsigned int to, type value, unsigned int count), (to, value, count), NULL,      \
         false, gate_enter, true)                                                                           \
    WORK(cuMemsetD2D##bits,                                                                                 \
         (unsigned int to, unsigned int pitch, type value, unsigned int width, unsigned int height),        \
         (to, pitch, value, width, height), NULL, false, gate_enter, true)                                  \
    SETTING(cuMemsetD##bits, _v2, (CUdeviceptr to, type value, size_t count), (to, value, count))           \
    SETTING(cuMemsetD2D##bits, _v2,                                                                         \
            (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height),                        \
            (to, pitch, value, width, height))

WIDTH(8, unsigned char)
WIDTH(16, unsigned short)
WIDTH(32, unsigned int)

static bool on_device(CUdeviceptr at)
{
    unsigned int type = 0;
    return REAL(cuPointerGetAttribute)(&type, CU_POINTER_MEMORY_TYPE, at) == CUDA_SUCCESS &&
           type != CU_TYPE_HOST;
}

/* One end of a shaped copy. */
static bool end_on_device(int type, CUdeviceptr at)
{
    return type != CU_TYPE_HOST && (type != CU_TYPE_UNIFIED || on_device(at));
}

/* Another thread may change what the program has: the driver is given what was looked at here. */
static __attribute__((noinline)) bool plane_on_device(const CUDA_MEMCPY2D **copy, CUDA_MEMCPY2D *own)
{
    if (!*copy)
        return true;
    *own = **copy;
    *copy = own;
    return end_on_device(own->from.type, own->from.device) && end_on_device(own->to.type, own->to.device);
}

static __attribute__((noinline)) bool block_on_device(const CUDA_MEMCPY3D **copy, CUDA_MEMCPY3D *own)
{
    if (!*copy)
        return true;
    *own = **copy;
    *copy = own;
    return end_on_device(own->from.type, own->from.device) && end_on_device(own->to.type, own->to.device);
}

/* What begins in the call, or is over with it, depends on what it copies: so all of the call counts. */
#define COPY(name, types, values, counts)                                                                   \
    WORK(name, (WITHOUT types), (WITHOUT values), NULL, false, gate_enter_work, counts)
#define COPY_OF_THREAD(name, types, values, counts)                                                         \
    WORK(name, (WITHOUT types), (WITHOUT values), NULL, true, gate_enter_work, counts)
#define COPY_IN(name, types, values, counts)                                                                \
    WORK(name, (WITHOUT types, CUstream stream), (WITHOUT values, stream), stream, false, gate_enter_work,  \
         counts)                                                                                            \
    WORK(name##_ptsz, (WITHOUT types, CUstream stream), (WITHOUT values, stream), stream, true,             \
         gate_enter_work, counts)
#define COPIES(name, types, values, counts)                                                                 \
    COPY(name, types, values, counts)                                                                       \
    COPY_OF_THREAD(name##_ptds, types, values, counts)

/* Of a plane or block, which `counts` copies. */
#define SHAPED_OF(name, type, parameters, arguments, stream, per_thread, counts)                            \
    WORK_OF(name, parameters, type own, arguments, stream, per_thread, gate_enter_work, counts(&copy, &own))
#define SHAPED(name, type, counts)                                                                          \
    SHAPED_OF(name, type, (const type *copy), (copy), NULL, false, counts)                                  \
    SHAPED_OF(name##_ptds, type, (const type *copy), (copy), NULL, true, counts)
#define SHAPED_IN(name, type, counts)                                                                       \
    SHAPED_OF(name, type, (const type *copy, CUstream stream), (copy, stream), stream, false, counts)       \
    SHAPED_OF(name##_ptsz, type, (const type *copy, CUstream stream), (copy, stream), stream, true, counts)

#define LINE (CUdeviceptr to, CUdeviceptr from, size_t size), (to, from, size)
#define OLD_LINE (unsigned int to, unsigned int from, unsigned int size), (to, from, size)
#define PEER                                                                                                \
    (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size),          \
        (to, to_context, from, from_context, size)
#define OLD (const void *copy), (copy)

#define CALL_WITH(macro, ...) macro(__VA_ARGS__)

CALL_WITH(COPIES, cuMemcpyDtoD_v2, LINE, true)
CALL_WITH(COPY_IN, cuMemcpyDtoDAsync_v2, LINE, true)
CALL_WITH(COPY, cuMemcpyDtoD, OLD_LINE, true)
WORK(cuMemcpyDtoDAsync, (unsigned int to, unsigned int from, unsigned int size, CUstream stream),
     (to, from, size, stream), stream, false, gate_enter_work, true)
CALL_WITH(COPY_IN, cuMemcpyAsync, LINE, on_device(to) && on_device(from))

CALL_WITH(COPIES, cuMemcpyPeer, PEER, true)
CALL_WITH(COPY_IN, cuMemcpyPeerAsync, PEER, true)

SHAPED(cuMemcpy2D_v2, CUDA_MEMCPY2D, plane_on_device)
SHAPED(cuMemcpy2DUnaligned_v2, CUDA_MEMCPY2D, plane_on_device)
SHAPED_IN(cuMemcpy2DAsync_v2, CUDA_MEMCPY2D, plane_on_device)
SHAPED(cuMemcpy3D_v2, CUDA_MEMCPY3D, block_on_device)
SHAPED_IN(cuMemcpy3DAsync_v2, CUDA_MEMCPY3D, block_on_device)
SHAPED(cuMemcpy3DPeer, CUDA_MEMCPY3D, block_on_device)
SHAPED_IN(cuMemcpy3DPeerAsync, CUDA_MEMCPY3D, block_on_device)
CALL_WITH(COPY, cuMemcpy2D, OLD, true)
CALL_WITH(COPY, cuMemcpy2DUnaligned, OLD, true)
CALL_WITH(COPY, cuMemcpy3D, OLD, true)
WORK(cuMemcpy2DAsync, (const void *copy, CUstream stream), (copy, stream), stream, false, gate_enter_work,
     true)
WORK(cuMemcpy3DAsync, (const void *copy, CUstream stream), (copy, stream), stream, false, gate_enter_work,
     true)

#define INTO_ARRAY (CUarray to, size_t at, CUdeviceptr from, size_t size), (to, at, from, size)
#define OUT_OF_ARRAY (CUdeviceptr to, CUarray from, size_t at, size_t size), (to, from, at, size)
#define OF_ARRAYS                                                                                           \
    (CUarray to, size_t to_at, CUarray from, size_t at, size_t size), (to, to_at, from, at, size)

CALL_WITH(COPIES, cuMemcpyDtoA_v2, INTO_ARRAY, true)
CALL_WITH(COPIES, cuMemcpyAtoD_v2, OUT_OF_ARRAY, true)
CALL_WITH(COPIES, cuMemcpyAtoA_v2, OF_ARRAYS, true)
WORK(cuMemcpyDtoA, (CUarray to, unsigned int at, unsigned int from, unsigned int size), (to, at, from, size),
     NULL, false, gate_enter_work, true)
WORK(cuMemcpyAtoD, (unsigned int to, CUarray from, unsigned int at, unsigned int size), (to, from, at, size),
     NULL, false, gate_enter_work, true)
WORK(cuMemcpyAtoA, (CUarray to, unsigned int to_at, CUarray from, unsigned int at, unsigned int size),
     (to, to_at, from, at, size), NULL, false, gate_enter_work, true)

CUresult copy_anywhere(CUdeviceptr to, CUdeviceptr from, size_t size, bool per_thread)
{
    struct launch launch;
    bool counts = !is_open() && on_device(to) && on_device(from);
    CUresult result = counts ? gate_enter_work(&launch, NULL, per_thread) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        return result;
    result = per_thread ? REAL(cuMemcpy_ptds)(to, from, size) : REAL(cuMemcpy)(to, from, size);
    if (counts)
        gate_leave(&launch, result);
    return result;
}

/* Batches, of which it is not looked at what is in them. */
#define BATCH                                                                                               \
    (CUdeviceptr * to, CUdeviceptr * from, size_t * sizes, size_t count, void *attributes, size_t *indices, \
     size_t attribute_count, size_t *failed),                                                               \
        (to, from, sizes, count, attributes, indices, attribute_count, failed)
#define BATCH_2                                                                                             \
    (CUdeviceptr * to, CUdeviceptr * from, size_t * sizes, size_t count, void *attributes, size_t *indices, \
     size_t attribute_count),                                                                               \
        (to, from, sizes, count, attributes, indices, attribute_count)
#define BATCH_3D                                                                                            \
    (size_t count, void *operations, size_t *failed, unsigned long long flags),                             \
        (count, operations, failed, flags)
#define BATCH_3D_2 (size_t count, void *operations, unsigned long long flags), (count, operations, flags)

CALL_WITH(COPY_IN, cuMemcpyBatchAsync, BATCH, true)
CALL_WITH(COPY_IN, cuMemcpyBatchAsync_v2, BATCH_2, true)
CALL_WITH(COPY_IN, cuMemcpy3DBatchAsync, BATCH_3D, true)
CALL_WITH(COPY_IN, cuMemcpy3DBatchAsync_v2, BATCH_3D_2, true)
COPY_IN(cuMemBatchDecompressAsync, (void *parameters, size_t count, unsigned int flags, size_t *failed),
        (parameters, count, flags, failed), true)
COPY_IN(cuMemcpyWithAttributesAsync, (CUdeviceptr to, CUdeviceptr from, size_t size, void *attributes),
        (to, from, size, attributes), on_device(to) && on_device(from))
COPY_IN(cuMemcpy3DWithAttributesAsync, (void *operation, unsigned long long flags), (operation, flags), true)
