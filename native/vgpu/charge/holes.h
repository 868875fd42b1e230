/* Where pools have room: what the program freed to them, and nobody has been given since. */
#pragma once

#include "items.h"
#include "process/real.h"

/* The driver gave memory of the pool. */
void hole_fill(CUmemoryPool pool, CUdeviceptr at, uint64_t size);

/* What hole_fill() has put into the books was freed, in the order of the stream; `any`: at once, so that all may have it. */
void hole_make(const struct item *item, CUstream stream, bool any);

/* Whether the stream, `idle` or not, is sure to get so much without the pool's growing; then it is not told so again of the
 * same room. */
bool hole_take(CUmemoryPool pool, uint64_t size, CUstream stream, bool idle);

/* The pool gave memory back. */
void holes_forget(CUmemoryPool pool);
