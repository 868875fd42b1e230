#include "copy.h"

#include "engine.h"
#include "memory.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>

enum { BYTES_PER_US = 25000, COPY_NS = 1500 }; /* of a link to the host, and what any copy takes */
enum { FILL_PART = 16384 };                    /* a power of two */
enum { LARGE = 32 << 20 };

static void run_copy(struct op *op)
{
    struct copy *copy = op_data(op);
    for (size_t z = 0; z < copy->depth; z++) {
        const char *from = copy->from.at + z * copy->from.slice;
        char *to = copy->to.at + z * copy->to.slice;
        for (size_t y = 0; y < copy->height; y++)
            memmove(to + y * copy->to.pitch, from + y * copy->from.pitch, copy->width);
    }
    free(copy->staged);
    copy->staged = NULL;
}

struct end {
    size_t x, y, z;
    int type;
    uint64_t address;
    CUarray array;
    size_t pitch, height;
};

/* Bytes from the first to behind the last of a block of memory; false: more than there can be. */
static bool extent(const struct place *place, size_t width, size_t height, size_t depth, size_t *out)
{
    size_t rows, slices;
    return !__builtin_mul_overflow(place->pitch, height - 1, &rows) &&
           !__builtin_mul_overflow(place->slice, depth - 1, &slices) &&
           !__builtin_add_overflow(rows, slices, &rows) && !__builtin_add_overflow(rows, width, out);
}

static CUresult find_place(const struct end *end, const CUDA_MEMCPY3D *asked, bool write, struct place *out,
                           bool *is_host)
{
    size_t width = asked->WidthInBytes, height = asked->Height, depth = asked->Depth, size, skip;
    if (end->type == CU_MEMORYTYPE_ARRAY)
        return array_place(end->array, end->x, end->y, end->z, width, height, depth, out);
    CU_ARGUMENT(end->type == CU_MEMORYTYPE_HOST || end->type == CU_MEMORYTYPE_DEVICE ||
                end->type == CU_MEMORYTYPE_UNIFIED);
    CU_ARGUMENT(height == 1 || end->pitch >= width);
    out->pitch = end->pitch;
    CU_ARGUMENT(!__builtin_mul_overflow(end->pitch, end->height ? end->height : height, &out->slice));
    CU_ARGUMENT(!__builtin_mul_overflow(end->y, out->pitch, &skip));
    CU_ARGUMENT(!__builtin_add_overflow(skip, end->x, &skip));
    CU_ARGUMENT(!__builtin_mul_overflow(end->z, out->slice, &size) &&
                !__builtin_add_overflow(skip, size, &skip));
    CU_ARGUMENT(end->address && extent(out, width, height, depth, &size) && size <= UINT64_MAX - skip);
    uint64_t address = end->address + skip;
    out->at = (char *)(uintptr_t)address;
    *is_host = !memory_find(address);
    CU_ARGUMENT(!*is_host || end->type != CU_MEMORYTYPE_DEVICE);
    return *is_host ? CUDA_SUCCESS : memory_touch(address, size, write);
}

CUresult copy_make(const CUDA_MEMCPY3D *asked, struct op **out, bool *host_from, bool *host_to)
{
    struct end from = {asked->srcXInBytes,
                       asked->srcY,
                       asked->srcZ,
                       asked->srcMemoryType,
                       asked->srcMemoryType == CU_MEMORYTYPE_HOST ? (uint64_t)(uintptr_t)asked->srcHost
                                                                  : asked->srcDevice,
                       asked->srcArray,
                       asked->srcPitch,
                       asked->srcHeight};
    struct end to = {asked->dstXInBytes,
                     asked->dstY,
                     asked->dstZ,
                     asked->dstMemoryType,
                     asked->dstMemoryType == CU_MEMORYTYPE_HOST ? (uint64_t)(uintptr_t)asked->dstHost
                                                                : asked->dstDevice,
                     asked->dstArray,
                     asked->dstPitch,
                     asked->dstHeight};
    struct copy copy = {
        .width = asked->WidthInBytes, .height = asked->Height, .depth = asked->Depth, .asked = *asked};
    *out = NULL;
    *host_from = *host_to = false;
    if (!asked->WidthInBytes || !asked->Height || !asked->Depth)
        return CUDA_SUCCESS;
    CU_TRY(find_place(&from, asked, false, &copy.from, host_from));
    CU_TRY(find_place(&to, asked, true, &copy.to, host_to));
    struct op *op = op_new(OP_COPY, sizeof(copy));
    CU_REQUIRE(op, CUDA_ERROR_OUT_OF_MEMORY);
    memcpy(op_data(op), &copy, sizeof(copy));
    op->run = run_copy;
    op->duration = COPY_NS + copy.width * copy.height * copy.depth / (BYTES_PER_US / 1000);
    *out = op;
    return CUDA_SUCCESS;
}

/* A program may change pageable memory as soon as an asynchronous copy from it has returned. */
static CUresult stage(struct op *op)
{
    struct copy *copy = op_data(op);
    size_t size = copy->width * copy->height * copy->depth;
    char *buffer = malloc(size);
    CU_REQUIRE(buffer, CUDA_ERROR_OUT_OF_MEMORY);
    for (size_t z = 0; z < copy->depth; z++)
        for (size_t y = 0; y < copy->height; y++)
            memcpy(buffer + (z * copy->height + y) * copy->width,
                   copy->from.at + z * copy->from.slice + y * copy->from.pitch, copy->width);
    copy->staged = buffer;
    copy->from = (struct place){buffer, copy->width, copy->width * copy->height};
    return CUDA_SUCCESS;
}

/* Of much memory to the host, as for the steps of a checkpoint: `copy 0` fails. */
static CUresult late(const CUDA_MEMCPY3D *asked)
{
    bool is_large = asked->dstMemoryType == CU_MEMORYTYPE_HOST && asked->WidthInBytes >= LARGE;
    return is_large && step_delay(driver(), "copy") == 0 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

CUresult copy_submit(const CUDA_MEMCPY3D *asked, CUstream handle, bool wait)
{
    struct op *op;
    bool host_from, host_to;
    CU_CONTEXT(current);
    CU_STREAM(stream, handle);
    if (wait)
        CU_REQUIRE(!stream->capture && !context_is_capturing(stream->context),
                   CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    CU_TRY(late(asked));
    CU_TRY(copy_make(asked, &op, &host_from, &host_to));
    if (!op)
        return CUDA_SUCCESS;
    if (host_from && !wait && !stream->capture) {
        CUresult result = stage(op);
        if (result != CUDA_SUCCESS) {
            op_free(op);
            return result;
        }
    }
    struct context *context = stream->context;
    wait = wait || (host_to && !stream->capture);
    CU_TRY(engine_submit(stream, op));
    if (wait)
        engine_wait_stream(stream);
    return handle_is(context, KIND_CONTEXT) ? context->error : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* The value again and again: from what is written already, in parts that stay in a processor's cache. */
static void fill_row(char *row, const struct fill *fill)
{
    size_t bytes = fill->width * fill->size, done = fill->size;
    memcpy(row, &fill->value, fill->size); /* the low bytes come first */
    while (done < bytes) {
        size_t part = done < FILL_PART ? done : FILL_PART;
        part = part < bytes - done ? part : bytes - done;
        memcpy(row + done, row, part);
        done += part;
    }
}

static void run_fill(struct op *op)
{
    const struct fill *fill = op_data(op);
    bool bytes_are_one = fill->size == 1 || fill->value == (fill->value & 0xff) * 0x1010101;
    for (size_t y = 0; y < fill->height; y++) {
        char *row = fill->at + y * fill->pitch;
        if (bytes_are_one)
            memset(row, (int)fill->value, fill->width * fill->size);
        else
            fill_row(row, fill);
    }
}

CUresult fill_make(CUdeviceptr to, size_t pitch, unsigned int value, unsigned int size, size_t width,
                   size_t height, struct op **out)
{
    struct fill fill = {(char *)(uintptr_t)to, pitch, width, height, value, size};
    size_t bytes, rows;
    *out = NULL;
    CU_ARGUMENT(size == 1 || size == 2 || size == 4);
    CU_ARGUMENT(to % size == 0 && !__builtin_mul_overflow(width, (size_t)size, &bytes));
    CU_ARGUMENT(height <= 1 || (pitch >= bytes && pitch % size == 0));
    if (!width || !height)
        return CUDA_SUCCESS;
    CU_ARGUMENT(!__builtin_mul_overflow(pitch, height - 1, &rows) &&
                !__builtin_add_overflow(rows, bytes, &rows));
    CU_TRY(memory_touch(to, rows, true));
    struct op *op = op_new(OP_COPY, sizeof(fill));
    CU_REQUIRE(op, CUDA_ERROR_OUT_OF_MEMORY);
    memcpy(op_data(op), &fill, sizeof(fill));
    op->run = run_fill;
    op->node_type = CU_GRAPH_NODE_TYPE_MEMSET;
    op->duration = COPY_NS + bytes * height / 2000; /* at the speed of device memory */
    *out = op;
    return CUDA_SUCCESS;
}
