/* Pools of memory that is allocated and freed in the order of streams. */
#pragma once

#include "memory.h"

struct stretch;

struct pool {
    struct device *device;
    bool is_default, dead;
    bool shared;       /* may be exported */
    bool imported;     /* gives no memory: what another process exports of it is mapped */
    bool lazy;         /* memory comes with pool_back(), before that there are addresses only */
    uint64_t max_size; /* 0: no limit */
    uint64_t threshold;
    uint64_t reserved, reserved_high, used, used_high;
    int reuse[3];
    struct stretch *stretches;
    struct memory *freed; /* by the program, and the stream is not there yet */
};

CUresult pool_create(struct device *device, struct pool **out);
void pool_destroy(struct pool *pool);
CUresult pool_back(struct pool *pool, const struct memory *memory);

/* What has this memory of a lazy pool is free until the next pool_back(), and may back other memory. */
void pool_loosen(struct pool *pool, const struct memory *memory);

void pool_trim(struct pool *pool, uint64_t keep);
CUresult pool_free_later(struct memory *memory, struct stream *stream);
