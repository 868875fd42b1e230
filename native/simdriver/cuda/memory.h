/* Allocations of every kind, and the address space that device memory is taken from. */
#pragma once

#include "driver.h"

static inline uint64_t round_up(uint64_t value, uint64_t step)
{
    return (value + step - 1) / step * step;
}

/* space.c: `size` is a multiple of 2 MiB. What is given back reads as zero when taken again. */
CUresult space_take(struct device *device, uint64_t size, uint64_t *address);
void space_give(struct device *device, uint64_t address, uint64_t size);
/* Up to 1 MiB, out of chunks of 2 MiB that are charged and released as a whole. */
CUresult chunk_take(struct device *device, uint64_t size, uint64_t *address, struct chunk **chunk);
void chunk_give(struct device *device, struct chunk *chunk, uint64_t address, uint64_t size);
/* An anonymous file of `size` bytes in memory, -1 where there is none to be had. */
int memory_file(const char *name, uint64_t size);

/* memory.c */
CUresult memory_allocate(struct context *context, uint64_t size, enum memory_kind kind, struct memory **out);
struct memory *memory_new(struct context *context, enum memory_kind kind, uint64_t size); /* NULL: no room */
void memory_enter(struct memory *memory); /* from now on it is found by its addresses */
struct memory *memory_find(uint64_t address);
void memory_release(struct memory *memory); /* gives back all that it has */
void memory_free_context(struct context *context);
/* Checks that the device may read, or write, `size` bytes from `address`; marks managed memory as used there. */
CUresult memory_touch(uint64_t address, uint64_t size, bool write);

/* pool.c */
CUresult pool_default(struct device *device, struct pool **out);
CUresult pool_allocate(struct pool *pool, uint64_t size, struct stream *stream, struct memory **out);
void pool_free(struct memory *memory);   /* the stream has reached the free */
void pool_settle(struct device *device); /* at a synchronisation: gives back what is over the threshold */

/* array.c: the arrays of a context that ends */
void arrays_forget(struct context *context);

/* vmm.c, ipc.c: what memory_release has to undo for them */
void vmm_unmapped(struct memory *memory);
void ipc_closed(struct memory *memory);
