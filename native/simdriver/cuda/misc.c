/* Small things: attributes that hardware would heed, profiling, batches of copies, textures and surfaces. */
#include "copy.h"
#include "graph.h"
#include "memory.h"
#include "stream.h"

#include <string.h>

/* Nobody profiles; a program may still mark what it would like to see. */
static CUresult no_profiler(void)
{
    CU_CONTEXT(context);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuProfilerStart, (void), no_profiler())
CU_EXPORT(cuProfilerStop, (void), no_profiler())

static CUresult copy_batch(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *sizes, size_t count,
                           size_t *failed, CUstream stream)
{
    CU_ARGUMENT(to && from && sizes && count);
    for (size_t i = 0; i < count; i++) {
        CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                              .srcDevice = from[i],
                              .srcPitch = sizes[i],
                              .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                              .dstDevice = to[i],
                              .dstPitch = sizes[i],
                              .WidthInBytes = sizes[i],
                              .Height = 1,
                              .Depth = 1};
        if (failed)
            *failed = i;
        CU_TRY(copy_submit(&copy, stream, false));
    }
    return CUDA_SUCCESS;
}

#define BATCH                                                                                               \
    const CUdeviceptr *to, const CUdeviceptr *from, const size_t *sizes, size_t count, const void *hints,   \
        const size_t *at, size_t number

#define BATCHED(failed)                                                                                     \
    ((void)hints, (void)at, (void)number, copy_batch(to, from, sizes, count, failed, OWN(stream)))

CU_TWINS(_ptsz, cuMemcpyBatchAsync, (BATCH, size_t *failed, CUstream stream), BATCHED(failed))
CU_TWINS(_ptsz, cuMemcpyBatchAsync_v2, (BATCH, CUstream stream), BATCHED(NULL))

/* What a texture or surface object is made of. No kernel samples it, so only the descriptions are kept. */
struct view {
    unsigned char resource[144], texture[104], resource_view[112];
    bool has_texture, has_view;
};

static struct view *view_of(unsigned long long object, bool texture)
{
    struct view *view = (struct view *)(uintptr_t)object;
    return handle_is(view, KIND_VIEW) && view->has_texture == texture ? view : NULL;
}

static CUresult create_view(unsigned long long *out, const void *resource, const void *texture,
                            const void *resource_view, bool is_texture)
{
    CU_CONTEXT(context);
    CU_ARGUMENT(out && resource && !is_texture == !texture);
    struct view *view = handle_new(KIND_VIEW, sizeof(*view));
    CU_REQUIRE(view, CUDA_ERROR_OUT_OF_MEMORY);
    memcpy(view->resource, resource, sizeof(view->resource));
    view->has_texture = is_texture;
    view->has_view = resource_view != NULL;
    if (texture)
        memcpy(view->texture, texture, sizeof(view->texture));
    if (resource_view)
        memcpy(view->resource_view, resource_view, sizeof(view->resource_view));
    *out = (unsigned long long)(uintptr_t)view;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuTexObjectCreate,
          (unsigned long long *out, const void *resource, const void *texture, const void *resource_view),
          create_view(out, resource, texture, resource_view, true))

static CUresult destroy_view(struct view *view)
{
    CU_REQUIRE(view, CUDA_ERROR_INVALID_VALUE);
    handle_free(view);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuTexObjectDestroy, (unsigned long long object), destroy_view(view_of(object, true)))
CU_EXPORT(cuSurfObjectDestroy, (unsigned long long object), destroy_view(view_of(object, false)))

static CUresult describe_view(void *out, const void *from, size_t size)
{
    CU_ARGUMENT(out && from);
    memcpy(out, from, size);
    return CUDA_SUCCESS;
}

#define DESCRIBE(name, texture, member)                                                                     \
    CU_API CUresult name(void *out, unsigned long long object)                                              \
    {                                                                                                       \
        CU_ENTER();                                                                                         \
        const struct view *view = view_of(object, texture);                                                 \
        CU_RETURN(describe_view(out, view ? view->member : NULL, sizeof(view->member)));                    \
    }

DESCRIBE(cuTexObjectGetResourceDesc, true, resource)
