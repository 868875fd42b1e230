/* What cuMemCreate made, and whatever goes to other processes by a handle. */
#pragma once

#include "abi/cuda.h"

/* What the driver does to handles and mappings and what the books say of them are one step: else one thread counts the end
 * of what another was given under the same handle or address. The driver holds a lock of its own for as long. */
#define HANDLES offsetof(struct process, handles)

/* One handle more: a new one, or one that the driver hands out again. The lock of the items is held. */
void memory_add_handle(uint64_t handle, uint64_t number);

/* What the driver answered to the end of an array: if it ended, it holds no more what it was given as a sparse one. */
CUresult bound_drop(const void *array, CUresult result);
