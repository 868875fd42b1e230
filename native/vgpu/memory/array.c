/* Arrays have no address. Large ones are rounded up like linear memory; small ones are taken to share chunks among
 * themselves, as full as can be. */
#include "charge/charge.h"
#include "charge/resident.h"
#include "vmm.h"

/* Rows of 64 bytes lie in blocks of 8 (measured on driver 580). */
enum { LAYERED = 1, CUBEMAP = 4, SPARSE = 0x40, DEFERRED = 0x80, ROW = 64, ROWS = 8 };

/* Bits of an element, by the number of its format; of compressed ones, blocks of 4 x 4 count per element. */
static uint64_t format_bits(int format, uint64_t channels)
{
    static const uint8_t of_channel[] = {[0x01] = 8,  [0x08] = 8,  [0x02] = 16, [0x09] = 16,
                                         [0x10] = 16, [0x03] = 32, [0x0a] = 32, [0x20] = 32};
    if (format >= 0 && (size_t)format < sizeof(of_channel) && of_channel[format])
        return of_channel[format] * channels;
    if (format >= 0x91 && format <= 0x9f) /* BC1 and BC4 take half */
        return format == 0x91 || format == 0x92 || format == 0x97 || format == 0x98 ? 4 : 8;
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

struct making {
    struct target to;
    uint64_t size, reserved; /* 0: it takes nothing */
};

/* False: it does not fit. */
static bool begin(const CUDA_ARRAY3D_DESCRIPTOR *asked, unsigned int levels, struct making *making)
{
    *making = (struct making){.size = array_bytes(asked, levels)};
    if (!making->size || !target_current(&making->to))
        return true;
    making->reserved = making->size <= MIB ? PAGE : round_capped(making->size, PAGE);
    return charge(making->to.position, making->reserved);
}

static void end(const struct making *making, const void *made, CUresult result)
{
    bool small = making->size <= MIB;
    struct item item = {.kind = ITEM_ARRAY,
                        .key = KEY(made),
                        .position = (uint8_t)making->to.position,
                        .context = making->to.context,
                        .other = making->size,
                        .small = small};
    uint64_t taken = 0;
    if (!making->reserved)
        return;
    if (result == CUDA_SUCCESS)
        taken = small ? add_small(item.position, (int64_t)making->size) : making->reserved;
    account_settle(item.position, making->reserved, taken);
    item.bytes = small ? 0 : taken;
    if (result == CUDA_SUCCESS)
        item_put(&item);
}

/* With copies: another thread may change what the program has. */
#define CREATE(name, parameters, array, type, depth, flags, levels, arguments)                              \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        struct making making = {.size = 0};                                                                 \
        array made = NULL, *place = out ? &made : NULL;                                                     \
        type own = asked ? *asked : (type){0}, *copy = asked ? &own : NULL;                                 \
        CUDA_ARRAY3D_DESCRIPTOR full = {own.Width, own.Height, depth, own.Format, own.NumChannels, flags};  \
        if (out && asked && !begin(&full, levels, &making))                                                 \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                \
        CUresult result = WITH_ROOM(making.to.position, 0, REAL(name) arguments);                           \
        end(&making, made, result);                                                                         \
        return HAND_OUT(out, made, result);                                                                 \
    }

#define CREATE_ARRAY(name, type, depth, flags)                                                              \
    CREATE(name, (CUarray * out, const type *asked), CUarray, type, depth, flags, 1, (place, copy))

CREATE_ARRAY(cuArrayCreate, CUDA_ARRAY_DESCRIPTOR_v1, 0, 0)
CREATE_ARRAY(cuArrayCreate_v2, CUDA_ARRAY_DESCRIPTOR, 0, 0)
CREATE_ARRAY(cuArray3DCreate, CUDA_ARRAY3D_DESCRIPTOR_v1, own.Depth, own.Flags)
CREATE_ARRAY(cuArray3DCreate_v2, CUDA_ARRAY3D_DESCRIPTOR, own.Depth, own.Flags)
CREATE(cuMipmappedArrayCreate,
       (CUmipmappedArray * out, const CUDA_ARRAY3D_DESCRIPTOR *asked, unsigned int levels), CUmipmappedArray,
       CUDA_ARRAY3D_DESCRIPTOR, own.Depth, own.Flags, levels, (place, copy, levels))

#define DESTROY(name, type)                                                                                 \
    CU_API CUresult name(type array)                                                                        \
    {                                                                                                       \
        struct item item;                                                                                   \
        if (item_take(ITEM_ARRAY, KEY(array), &item))                                                       \
            return refund_if(&item, REAL(name)(array));                                                     \
        return IN_TURN(HANDLES, bound_drop(array, REAL(name)(array)));                                      \
    }

DESTROY(cuArrayDestroy, CUarray)
DESTROY(cuMipmappedArrayDestroy, CUmipmappedArray)
