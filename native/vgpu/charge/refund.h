/* Out of the books: what an item bears goes back to the slice, or on to another process that has its memory. */
#pragma once

#include "abi/cuda.h"
#include "items.h"
#include "slice/account.h"

#define MIB UINT64_C(0x100000)
#define PAGE (2 * MIB)
#define POOL_STEP (32 * MIB)

/* Rounded up to `unit`; what overflows is more than any limit. */
static inline uint64_t round_capped(uint64_t value, uint64_t unit)
{
    return value > UINT64_MAX - unit ? UINT64_MAX : ROUND_UP(value, unit);
}

/* Gives back what an item bears, its part of a chunk too. */
void refund(const struct item *item);

/* What was taken from the books before the driver was asked to free it, and its answer: put back if it did not. */
CUresult refund_if(const struct item *item, CUresult freed);

/* One reference less to what cuMemCreate made; its charge goes with the last. */
void memory_drop(uint64_t number);

void array_leave_small(const struct item *item);
