/* Blocks: linear memory of PAGE and more whose addresses stay while it is given back and taken again. So it is virtual
 * memory, in pieces of 64 MiB: each call of the driver takes as long for 2 MiB. Pieces have no handles of their own, but
 * live as long as they are mapped. */
#pragma once

#include "charge/charge.h"
#include "hold.h"

/* Whether memory of that size becomes a block. Of a slice with several devices none does: others could not reach it. */
bool block_suits(const struct target *to, uint64_t size);

/* CUDA_ERROR_NOT_SUPPORTED: the driver cannot do that. */
CUresult block_make(CUdeviceptr *out, uint64_t size, CUdevice ordinal);

/* Gives it and its addresses up, once the device has done what it was for. */
CUresult block_free(const struct item *item);
CUresult block_end(const struct item *item); /* its context is gone */

/* Pieces that are there already stay, with what is in them. Where one cannot go, others have: either is to be done again. */
CUresult block_map(CUdeviceptr address, uint64_t bytes, CUdevice ordinal);
CUresult block_unmap(CUdeviceptr address, uint64_t bytes);
