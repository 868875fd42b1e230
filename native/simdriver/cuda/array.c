/* Arrays and mipmapped arrays: rows of elements in device memory that no pointer reaches. */
#include "copy.h"
#include "engine.h"
#include "memory.h"

enum { MAX_LEVELS = 32, LAYERED = 1, KNOWN_FLAGS = 0xff };

struct array {
    struct context *context;
    CUDA_ARRAY3D_DESCRIPTOR described;
    struct memory *memory;
    size_t element, pitch; /* bytes */
    bool is_level;         /* of a mipmapped array, and goes with it */
};

struct mipmap {
    unsigned int count;
    struct array *levels[MAX_LEVELS];
};

/* Bytes of a channel; 0: a format that is not simulated, such as the compressed ones. */
static size_t channel_size(int format)
{
    switch (format) {
    case 0x01:
    case 0x08:
        return 1;
    case 0x02:
    case 0x09:
    case 0x10:
        return 2;
    case 0x03:
    case 0x0a:
    case 0x20:
        return 4;
    default:
        return 0;
    }
}

static size_t at_least_one(size_t value)
{
    return value ? value : 1;
}

static CUresult make(struct context *context, const CUDA_ARRAY3D_DESCRIPTOR *asked, struct array **out)
{
    size_t element = channel_size(asked->Format) * asked->NumChannels, size;
    CU_ARGUMENT(asked->Width &&
                (asked->NumChannels == 1 || asked->NumChannels == 2 || asked->NumChannels == 4));
    CU_REQUIRE(element, CUDA_ERROR_NOT_SUPPORTED);
    CU_ARGUMENT(asked->Width <= 1 << 18 && asked->Height <= 1 << 17 && asked->Depth <= 1 << 15);
    CU_ARGUMENT(!(asked->Flags & ~(unsigned int)KNOWN_FLAGS));
    size_t pitch = round_up(asked->Width * element, 64);
    CU_REQUIRE(
        !__builtin_mul_overflow(pitch * at_least_one(asked->Height), at_least_one(asked->Depth), &size),
        CUDA_ERROR_OUT_OF_MEMORY);
    struct array *array = handle_new(KIND_ARRAY, sizeof(*array));
    CU_REQUIRE(array, CUDA_ERROR_OUT_OF_MEMORY);
    CUresult result = memory_allocate(context, size, MEMORY_GLOBAL, &array->memory);
    if (result != CUDA_SUCCESS) {
        handle_free(array);
        return result;
    }
    array->context = context;
    array->described = *asked;
    array->element = element;
    array->pitch = pitch;
    *out = array;
    return CUDA_SUCCESS;
}

CUresult array_place(CUarray array, size_t x, size_t y, size_t z, size_t width, size_t height, size_t depth,
                     struct place *out)
{
    CU_REQUIRE(handle_is(array, KIND_ARRAY), CUDA_ERROR_INVALID_HANDLE);
    size_t wide = array->described.Width * array->element;
    size_t high = at_least_one(array->described.Height), deep = at_least_one(array->described.Depth);
    CU_ARGUMENT(x <= wide && width <= wide - x && y <= high && height <= high - y && z <= deep &&
                depth <= deep - z);
    out->pitch = array->pitch;
    out->slice = array->pitch * high;
    out->at = (char *)(uintptr_t)array->memory->range.base + z * out->slice + y * out->pitch + x;
    return CUDA_SUCCESS;
}

static CUresult create(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *asked)
{
    CU_CONTEXT(context);
    CU_ARGUMENT(out && asked);
    return make(context, asked, out);
}

static CUresult create_plane(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *asked)
{
    CU_ARGUMENT(asked);
    return create(out, &(CUDA_ARRAY3D_DESCRIPTOR){asked->Width, asked->Height, 0, asked->Format,
                                                  asked->NumChannels, 0});
}

CU_EXPORT(cuArrayCreate_v2, (CUarray * out, const CUDA_ARRAY_DESCRIPTOR *asked), create_plane(out, asked))
CU_EXPORT(cuArray3DCreate_v2, (CUarray * out, const CUDA_ARRAY3D_DESCRIPTOR *asked), create(out, asked))

static void drop(struct array *array)
{
    memory_release(array->memory);
    handle_free(array);
}

static CUresult destroy(CUarray array)
{
    CU_CONTEXT(context);
    CU_REQUIRE(handle_is(array, KIND_ARRAY) && !array->is_level, CUDA_ERROR_INVALID_HANDLE);
    engine_wait_device(array->context->device);
    drop(array);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuArrayDestroy, (CUarray array), destroy(array))

static size_t halved(size_t value, unsigned int level)
{
    return value ? at_least_one(value >> level) : 0;
}

static void drop_levels(struct mipmap *mipmap)
{
    while (mipmap->count)
        drop(mipmap->levels[--mipmap->count]);
    handle_free(mipmap);
}

/* Each level has half of the one before in every dimension but layers. */
static CUresult create_mipmap(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *asked,
                              unsigned int count)
{
    CU_CONTEXT(context);
    CU_ARGUMENT(out && asked && count && count <= MAX_LEVELS);
    struct mipmap *mipmap = handle_new(KIND_MIPMAP, sizeof(*mipmap));
    CU_REQUIRE(mipmap, CUDA_ERROR_OUT_OF_MEMORY);
    for (unsigned int level = 0; level < count; level++) {
        CUDA_ARRAY3D_DESCRIPTOR one = *asked;
        one.Width = halved(asked->Width, level);
        one.Height = halved(asked->Height, level);
        one.Depth = asked->Flags & LAYERED ? asked->Depth : halved(asked->Depth, level);
        CUresult result = make(context, &one, &mipmap->levels[level]);
        if (result != CUDA_SUCCESS) {
            drop_levels(mipmap);
            return result;
        }
        mipmap->levels[level]->is_level = true;
        mipmap->count++;
    }
    *out = mipmap;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMipmappedArrayCreate,
          (CUmipmappedArray * out, const CUDA_ARRAY3D_DESCRIPTOR *asked, unsigned int levels),
          create_mipmap(out, asked, levels))

static CUresult destroy_mipmap(CUmipmappedArray mipmap)
{
    CU_CONTEXT(context);
    CU_REQUIRE(handle_is(mipmap, KIND_MIPMAP), CUDA_ERROR_INVALID_HANDLE);
    engine_wait_device(context->device);
    drop_levels(mipmap);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMipmappedArrayDestroy, (CUmipmappedArray mipmap), destroy_mipmap(mipmap))

static CUresult get_level(CUarray *out, CUmipmappedArray mipmap, unsigned int level)
{
    CU_REQUIRE(handle_is(mipmap, KIND_MIPMAP), CUDA_ERROR_INVALID_HANDLE);
    CU_ARGUMENT(out && level < mipmap->count);
    *out = mipmap->levels[level];
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMipmappedArrayGetLevel, (CUarray * out, CUmipmappedArray mipmap, unsigned int level),
          get_level(out, mipmap, level))

static void forget(void *object, void *context)
{
    struct array *array = object;
    if (array->context != context)
        return;
    array->memory = NULL; /* goes with the context's memory */
    handle_free(array);
}

static void forget_levels(void *object, void *context)
{
    struct mipmap *mipmap = object;
    if (mipmap->count && mipmap->levels[0]->context == context)
        handle_free(mipmap);
}

void arrays_forget(struct context *context)
{
    handle_each(KIND_MIPMAP, forget_levels, context);
    handle_each(KIND_ARRAY, forget, context);
}
