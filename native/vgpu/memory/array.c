/* Arrays have no address. Large ones are rounded up like linear memory; small ones are taken to share chunks among
 * themselves, as full as can be. */
#include "charge/charge.h"
#include "vmm.h"

/* Rows of 64 bytes lie in blocks of 8 (measured on driver 580). */
enum { LAYERED = 1, CUBEMAP = 4, SPARSE = 0x40, DEFERRED = 0x80, ROW = 64, ROWS = 8 };

/* Bits of an element of compressed and packed formats, by number: blocks of 4 x 4 count per element. */
static uint64_t format_bits(int format, uint64_t channels)
{
    switch (format) {
    case 0x01:
    case 0x08:
        return 8 * channels;
    case 0x02:
    case 0x09:
    case 0x10:
        return 16 * channels;
    case 0x03:
    case 0x0a:
    case 0x20:
        return 32 * channels;
    case 0x91: /* BC1 */
    case 0x92:
    case 0x97: /* BC4 */
    case 0x98:
        return 4;
    default:
        break;
    }
    if (format >= 0x93 && format <= 0x9f)
        return 8;
    return channels ? 32 * channels : 128; /* not known: as much as an element can have */
}

static uint64_t at_least_one(uint64_t value)
{
    return value ? value : 1;
}

static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *asked, unsigned int level)
{
    uint64_t width = at_least_one(asked->Width >> level), height = at_least_one(asked->Height >> level);
    height = height > 1 ? round_capped(height, ROWS) : height;
    bool layers = asked->Flags & (LAYERED | CUBEMAP);
    uint64_t depth = at_least_one(layers ? asked->Depth : asked->Depth >> level);
    uint64_t row = multiply_capped(width, format_bits(asked->Format, asked->NumChannels));
    row = round_capped(row / 8 + (row % 8 != 0), ROW);
    return multiply_capped(multiply_capped(row, height), depth);
}

static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *asked, unsigned int levels)
{
    uint64_t sum = 0;
    if (asked->Flags & (SPARSE | DEFERRED)) /* memory comes later, by cuMemMapArrayAsync, from cuMemCreate */
        return 0;
    for (unsigned int level = 0; level < levels && level < 32; level++) {
        uint64_t bytes = level_bytes(asked, level);
        sum = sum > UINT64_MAX - bytes ? UINT64_MAX : sum + bytes;
    }
    return sum;
}

/* What the small ones take together grows or shrinks by whole chunks. */
static uint64_t add_small(int position, int64_t bytes)
{
    struct item made = {.kind = ITEM_SMALL, .key = (uint64_t)position + 1, .position = (uint8_t)position};
    uint64_t before = 0, after = 0;
    items_lock();
    struct item *small = item_find(ITEM_SMALL, made.key);
    if (!small && item_insert(&made))
        small = item_find(ITEM_SMALL, made.key);
    if (small) {
        before = small->bytes;
        small->other += (uint64_t)bytes;
        small->bytes = after = ROUND_UP(small->other, PAGE);
    }
    items_unlock();
    return bytes > 0 ? after - before : before - after;
}

void array_leave_small(const struct item *item)
{
    uint64_t bytes = add_small(item->position, -(int64_t)item->other);
    if (bytes)
        account_release(item->position, bytes);
}

/* The four ways to ask, with copies: another thread may change what the program has. */
struct request {
    const CUDA_ARRAY_DESCRIPTOR_v1 *narrow;
    const CUDA_ARRAY_DESCRIPTOR *plane;
    const CUDA_ARRAY3D_DESCRIPTOR_v1 *narrow_full;
    const CUDA_ARRAY3D_DESCRIPTOR *full;
    unsigned int levels; /* 0: no mipmap */
};

static CUresult ask_driver(void **out, const struct request *request)
{
    if (request->levels)
        return REAL(cuMipmappedArrayCreate)((CUmipmappedArray *)out, request->full, request->levels);
    if (request->narrow)
        return REAL(cuArrayCreate)((CUarray *)out, request->narrow);
    if (request->plane)
        return REAL(cuArrayCreate_v2)((CUarray *)out, request->plane);
    if (request->narrow_full)
        return REAL(cuArray3DCreate)((CUarray *)out, request->narrow_full);
    return REAL(cuArray3DCreate_v2)((CUarray *)out, request->full);
}

static CUresult create(void **out, const struct request *request, const CUDA_ARRAY3D_DESCRIPTOR *asked)
{
    struct target to;
    void *made;
    uint64_t size = array_bytes(asked, request->levels ? request->levels : 1);
    if (!out || !size || !target_current(&to))
        return ask_driver(out, request);
    bool small = size <= MIB;
    uint64_t reserved = small ? PAGE : round_capped(size, PAGE);
    if (!charge(to.position, reserved))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = ask_driver(&made, request);
    if (result != CUDA_SUCCESS) {
        account_withdraw(to.position, reserved);
        return result;
    }
    struct item item = {.kind = ITEM_ARRAY,
                        .key = (uint64_t)(uintptr_t)made,
                        .position = (uint8_t)to.position,
                        .context = to.context,
                        .other = size,
                        .small = small};
    uint64_t taken = small ? add_small(to.position, (int64_t)size) : reserved;
    if (taken)
        account_commit(to.position, taken);
    if (reserved > taken)
        account_withdraw(to.position, reserved - taken);
    item.bytes = small ? 0 : taken;
    item_put(&item);
    *out = made;
    return CUDA_SUCCESS;
}

CU_API CUresult cuArrayCreate(CUarray *out, const CUDA_ARRAY_DESCRIPTOR_v1 *asked)
{
    if (!asked)
        return REAL(cuArrayCreate)(out, asked);
    CUDA_ARRAY_DESCRIPTOR_v1 own = *asked;
    CUDA_ARRAY3D_DESCRIPTOR full = {own.Width, own.Height, 0, own.Format, own.NumChannels, 0};
    return create((void **)out, &(struct request){.narrow = &own}, &full);
}

CU_API CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *asked)
{
    if (!asked)
        return REAL(cuArrayCreate_v2)(out, asked);
    CUDA_ARRAY_DESCRIPTOR own = *asked;
    CUDA_ARRAY3D_DESCRIPTOR full = {own.Width, own.Height, 0, own.Format, own.NumChannels, 0};
    return create((void **)out, &(struct request){.plane = &own}, &full);
}

CU_API CUresult cuArray3DCreate(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR_v1 *asked)
{
    if (!asked)
        return REAL(cuArray3DCreate)(out, asked);
    CUDA_ARRAY3D_DESCRIPTOR_v1 own = *asked;
    CUDA_ARRAY3D_DESCRIPTOR full = {own.Width,  own.Height,      own.Depth,
                                    own.Format, own.NumChannels, own.Flags};
    return create((void **)out, &(struct request){.narrow_full = &own}, &full);
}

CU_API CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *asked)
{
    if (!asked)
        return REAL(cuArray3DCreate_v2)(out, asked);
    CUDA_ARRAY3D_DESCRIPTOR own = *asked;
    return create((void **)out, &(struct request){.full = &own}, &own);
}

CU_API CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *asked,
                                       unsigned int levels)
{
    if (!asked || !levels)
        return REAL(cuMipmappedArrayCreate)(out, asked, levels);
    CUDA_ARRAY3D_DESCRIPTOR own = *asked;
    return create((void **)out, &(struct request){.full = &own, .levels = levels}, &own);
}

static CUresult ask_to_destroy(void *array, bool mipmap)
{
    return mipmap ? REAL(cuMipmappedArrayDestroy)((CUmipmappedArray)array)
                  : REAL(cuArrayDestroy)((CUarray)array);
}

static CUresult destroy_sparse(void *array, bool mipmap)
{
    handles_begin();
    CUresult result = ask_to_destroy(array, mipmap);
    if (result == CUDA_SUCCESS)
        bound_drop((uint64_t)(uintptr_t)array);
    return handles_end(result);
}

static CUresult destroy(void *array, bool mipmap)
{
    struct item item;
    if (!item_take(ITEM_ARRAY, (uint64_t)(uintptr_t)array, &item))
        return destroy_sparse(array, mipmap);
    CUresult result = ask_to_destroy(array, mipmap);
    if (result == CUDA_SUCCESS)
        refund(&item);
    else
        item_put(&item);
    return result;
}

CU_API CUresult cuArrayDestroy(CUarray array)
{
    return destroy(array, false);
}

CU_API CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    return destroy(array, true);
}
