/* Copies of up to three dimensions, and settings of memory, as operations. */
#pragma once

#include "driver.h"

/* One end of a copy: rows of `pitch` bytes, slices of `height` rows. */
struct place {
    char *at;
    size_t pitch, slice;
};

struct copy {
    struct place from, to;
    size_t width, height, depth; /* bytes, rows, slices */
    void *staged;                /* a copy of host memory that may change meanwhile; freed when done */
    CUDA_MEMCPY3D asked;         /* for graphs */
};

struct fill {
    char *at;
    size_t pitch, width, height; /* bytes, elements, rows */
    unsigned int value, size;
};

/* Checks the ends of a copy, whose memory types may be UNIFIED, and makes its operation. `host_from`, `host_to`:
 * whether an end is host memory that the driver does not know. NULL in `out` where there is nothing to copy. */
CUresult copy_make(const CUDA_MEMCPY3D *asked, struct op **out, bool *host_from, bool *host_to);

CUresult fill_make(CUdeviceptr to, size_t pitch, unsigned int value, unsigned int size, size_t width,
                   size_t height, struct op **out);

/* Copies on a stream; `wait`: until it is done. */
CUresult copy_submit(const CUDA_MEMCPY3D *asked, CUstream stream, bool wait);

/* array.c: where an element of an array lies. */
CUresult array_place(CUarray array, size_t x, size_t y, size_t z, size_t width, size_t height, size_t depth,
                     struct place *out);
