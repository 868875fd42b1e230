/* The many names of cuMemset. */
#include "copy.h"
#include "engine.h"
#include "stream.h"

/* As with the driver, a setting returns before it is done, except where it must not. */
static CUresult fill(CUdeviceptr to, size_t pitch, unsigned int value, unsigned int size, size_t width,
                     size_t height, CUstream handle)
{
    struct op *op;
    CU_CONTEXT(current);
    CU_STREAM(stream, handle);
    CU_TRY(fill_make(to, pitch, value, size, width, height, &op));
    return op ? engine_submit(stream, op) : CUDA_SUCCESS;
}

#define FILL(bits, type)                                                                                    \
    CU_TWINS(_ptds, cuMemsetD##bits##_v2, (CUdeviceptr to, type value, size_t count),                       \
             fill(to, 0, value, bits / 8, count, 1, OWN_DEFAULT))                                           \
    CU_TWINS(_ptsz, cuMemsetD##bits##Async, (CUdeviceptr to, type value, size_t count, CUstream stream),    \
             fill(to, 0, value, bits / 8, count, 1, OWN(stream)))                                           \
    CU_TWINS(_ptds, cuMemsetD2D##bits##_v2,                                                                 \
             (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height),                       \
             fill(to, pitch, value, bits / 8, width, height, OWN_DEFAULT))                                  \
    CU_TWINS(_ptsz, cuMemsetD2D##bits##Async,                                                               \
             (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height, CUstream stream),      \
             fill(to, pitch, value, bits / 8, width, height, OWN(stream)))

FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned int)
