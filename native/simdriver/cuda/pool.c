/* Memory in stream order. A pool reserves 32 MiB at a time, as measured on driver 580, and gives back what is free
 * and over its threshold at the next synchronisation. */
#include "pool.h"

#include "engine.h"
#include "stream.h"

#include <stdlib.h>

enum { UNIT = 512, STEP = 32 * MIB };

/* A stretch of reserved memory. */
struct stretch {
    struct stretch *next;
    uint64_t address, size, used;
    bool backed; /* by memory, that its pool is charged for */
    bool loose;  /* and what was in it is free: it may back another stretch, which keeps its addresses */
    struct ranges free;
};

CUresult pool_create(struct device *device, struct pool **out)
{
    struct pool *pool = handle_new(KIND_POOL, sizeof(*pool));
    CU_REQUIRE(pool, CUDA_ERROR_OUT_OF_MEMORY);
    pool->device = device;
    pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
    *out = pool;
    return CUDA_SUCCESS;
}

CUresult pool_default(struct device *device, struct pool **out)
{
    if (!device->default_pool) {
        CU_TRY(pool_create(device, &device->default_pool));
        device->default_pool->is_default = true;
        device->pool = device->default_pool;
    }
    *out = device->default_pool;
    return CUDA_SUCCESS;
}

/* A block that this stream freed may be used again in it at once: the order of the stream protects it. */
static struct memory *take_freed(struct pool *pool, uint64_t size, const struct stream *stream)
{
    for (struct memory **at = &pool->freed; *at; at = &(*at)->next_freed) {
        struct memory *memory = *at;
        if (memory->freed_on != stream || memory->taken < size || memory->taken > 2 * size)
            continue;
        *at = memory->next_freed;
        memory->freed_on = NULL;
        memory->use++;
        return memory;
    }
    return NULL;
}

static bool carve(struct pool *pool, struct memory *memory)
{
    for (struct stretch *stretch = pool->stretches; stretch; stretch = stretch->next) {
        struct range *hole = range_fit(&stretch->free, memory->taken);
        if (!hole)
            continue;
        memory->range.base = hole->base;
        range_remove(&stretch->free, hole);
        hole->base += memory->taken;
        hole->size -= memory->taken;
        if (hole->size)
            range_insert(&stretch->free, hole);
        else
            free(hole);
        stretch->used += memory->taken;
        return true;
    }
    return false;
}

/* Only memory of the same size moves. */
static bool take_loose(struct pool *pool, struct stretch *stretch)
{
    for (struct stretch *other = pool->stretches; other; other = other->next)
        if (other->loose && other->size == stretch->size) {
            other->backed = other->loose = false;
            stretch->backed = true;
            return true;
        }
    return false;
}

static CUresult back(struct pool *pool, struct stretch *stretch)
{
    stretch->loose = false;
    if (stretch->backed || take_loose(pool, stretch))
        return CUDA_SUCCESS;
    CU_TRY(ledger_charge(pool->device, stretch->size));
    stretch->backed = true;
    pool->reserved += stretch->size;
    if (pool->reserved > pool->reserved_high)
        pool->reserved_high = pool->reserved;
    return CUDA_SUCCESS;
}

static struct stretch *stretch_of(const struct pool *pool, const struct memory *memory)
{
    struct stretch *stretch = pool->stretches;
    while (stretch && memory->range.base - stretch->address >= stretch->size)
        stretch = stretch->next;
    return stretch;
}

CUresult pool_back(struct pool *pool, const struct memory *memory)
{
    struct stretch *stretch = stretch_of(pool, memory);
    return stretch ? back(pool, stretch) : CUDA_SUCCESS;
}

void pool_loosen(struct pool *pool, const struct memory *memory)
{
    struct stretch *stretch = stretch_of(pool, memory);
    if (stretch && stretch->backed && stretch->used == memory->taken)
        stretch->loose = true;
}

static void unback(struct pool *pool, struct stretch *stretch)
{
    if (!stretch->backed)
        return;
    stretch->backed = stretch->loose = false;
    pool->reserved -= stretch->size;
    ledger_refund(pool->device, stretch->size);
}

static CUresult add_stretch(struct pool *pool, uint64_t least)
{
    uint64_t size = round_up(least, STEP);
    if (size > pool->device->capacity)
        size = round_up(least, PAGE);
    CU_REQUIRE(!pool->max_size ||
                   (pool->reserved <= pool->max_size && size <= pool->max_size - pool->reserved),
               CUDA_ERROR_OUT_OF_MEMORY);
    struct stretch *stretch = calloc(1, sizeof(*stretch));
    struct range *all = calloc(1, sizeof(*all));
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (stretch && all) {
        stretch->size = size;
        result = pool->lazy ? CUDA_SUCCESS : back(pool, stretch);
    }
    if (result == CUDA_SUCCESS) {
        result = space_take(pool->device, size, &stretch->address);
        if (result != CUDA_SUCCESS)
            unback(pool, stretch);
    }
    if (result != CUDA_SUCCESS) {
        free(stretch);
        free(all);
        return result;
    }
    all->base = stretch->address;
    all->size = size;
    range_insert(&stretch->free, all);
    stretch->next = pool->stretches;
    pool->stretches = stretch;
    return CUDA_SUCCESS;
}

void pool_trim(struct pool *pool, uint64_t keep)
{
    for (struct stretch **at = &pool->stretches; *at && pool->reserved > keep;) {
        struct stretch *stretch = *at;
        if (stretch->used) {
            if (stretch->loose)
                unback(pool, stretch);
            at = &stretch->next;
            continue;
        }
        *at = stretch->next;
        unback(pool, stretch);
        free(stretch->free.root); /* unused: one hole */
        space_give(pool->device, stretch->address, stretch->size);
        free(stretch);
    }
}

static void settle(void *object, void *device)
{
    struct pool *pool = object;
    if (pool->device == device)
        pool_trim(pool, pool->threshold);
}

void pool_settle(struct device *device)
{
    handle_each(KIND_POOL, settle, device);
}

static void trim_all(void *object, void *device)
{
    struct pool *pool = object;
    if (pool->device == device)
        pool_trim(pool, 0);
}

CUresult pool_allocate(struct pool *pool, uint64_t size, struct stream *stream, struct memory **out)
{
    uint64_t taken = round_up(size, UNIT);
    CU_ARGUMENT(size);
    CU_REQUIRE(size <= pool->device->capacity, CUDA_ERROR_OUT_OF_MEMORY);
    struct memory *memory = take_freed(pool, taken, stream);
    if (!memory) {
        memory = memory_new(stream->context, MEMORY_POOL, size);
        CU_REQUIRE(memory, CUDA_ERROR_OUT_OF_MEMORY);
        memory->pool = pool;
        memory->device = pool->device;
        memory->taken = taken;
        CUresult result = carve(pool, memory) ? CUDA_SUCCESS : add_stretch(pool, taken);
        if (result == CUDA_ERROR_OUT_OF_MEMORY) {
            /* What is freed but not done yet, and what other pools keep, is not out of memory. */
            engine_wait_device(pool->device);
            handle_each(KIND_POOL, trim_all, pool->device);
            result = carve(pool, memory) ? CUDA_SUCCESS : add_stretch(pool, taken);
        }
        if (result != CUDA_SUCCESS || (!memory->range.base && !carve(pool, memory))) {
            free(memory);
            return result;
        }
        memory_enter(memory);
    }
    memory->range.size = size;
    pool->used += memory->taken;
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
    *out = memory;
    return CUDA_SUCCESS;
}

/* Joins a hole with its neighbours. */
static void give_back(struct stretch *stretch, uint64_t base, uint64_t size)
{
    struct range *before = range_at(&stretch->free, base - 1);
    struct range *after = range_at(&stretch->free, base + size);
    struct range *own = before ? before : after ? after : calloc(1, sizeof(*own));
    stretch->used -= size;
    if (!own)
        return; /* not used again while the stretch lives */
    uint64_t from = before ? before->base : base, to = after ? after->base + after->size : base + size;
    if (before)
        range_remove(&stretch->free, before);
    if (after)
        range_remove(&stretch->free, after);
    if (before && after)
        free(after);
    own->base = from;
    own->size = to - from;
    range_insert(&stretch->free, own);
}

static void forget_freed(struct memory *memory)
{
    for (struct memory **at = &memory->pool->freed; *at; at = &(*at)->next_freed)
        if (*at == memory) {
            *at = memory->next_freed;
            return;
        }
}

void pool_free(struct memory *memory)
{
    struct pool *pool = memory->pool;
    struct stretch *stretch = stretch_of(pool, memory);
    if (memory->freed_on)
        forget_freed(memory);
    else
        pool->used -= memory->taken;
    if (stretch)
        give_back(stretch, memory->range.base, memory->taken);
    memory_release(memory);
    if (pool->dead && !pool->used && !pool->freed)
        pool_destroy(pool);
}

void pool_destroy(struct pool *pool)
{
    pool_trim(pool, 0);
    handle_free(pool);
}

static void run_free(struct op *op)
{
    struct memory *memory = op->memory;
    memory->frees_due--;
    if (memory->use != op->generation)
        return; /* used again meanwhile */
    if (memory->kind == MEMORY_POOL)
        pool_free(memory);
    else
        memory_release(memory);
}

CUresult pool_free_later(struct memory *memory, struct stream *stream)
{
    struct op *op = op_new(OP_FREE, 0);
    CU_REQUIRE(op, CUDA_ERROR_OUT_OF_MEMORY);
    memory->freed_on = stream;
    op->memory = memory;
    op->generation = ++memory->use;
    memory->frees_due++;
    op->run = run_free;
    if (memory->kind == MEMORY_POOL) {
        memory->pool->used -= memory->taken;
        memory->next_freed = memory->pool->freed;
        memory->pool->freed = memory;
    }
    return engine_submit(stream, op);
}
