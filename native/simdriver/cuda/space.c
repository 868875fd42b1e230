/* Where device memory lies: one sparse file in memory for each device, mapped whole, handed out by 2 MiB. */
#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif

enum { UNIT = 512, UNITS = PAGE / UNIT };

int memory_file(const char *name, uint64_t size)
{
    int fd = (int)syscall(SYS_memfd_create, name, MFD_CLOEXEC | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) /* before Linux 6.3 */
        fd = (int)syscall(SYS_memfd_create, name, MFD_CLOEXEC);
    int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 512);
    if (high >= 0) {
        close(fd);
        fd = high;
    }
    if (fd >= 0 && ftruncate(fd, (off_t)size) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Far more addresses than memory, so that holes never matter; less where addresses are scarce. */
static CUresult set_up(struct device *device)
{
    struct space *space = &device->space;
    for (uint64_t size = UINT64_C(1) << 40; size >= round_up(device->capacity, PAGE); size /= 2) {
        int fd = memory_file("nvidia-sim-memory", size);
        CU_REQUIRE(fd >= 0, CUDA_ERROR_OPERATING_SYSTEM);
        void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
        struct range *all = calloc(1, sizeof(*all));
        if (at == MAP_FAILED || !all) {
            free(all);
            close(fd);
            continue;
        }
        madvise(at, size, MADV_DONTDUMP);
        madvise(at, size, MADV_DONTFORK);
        space->fd = fd;
        space->base = (uint64_t)(uintptr_t)at;
        space->size = size;
        all->base = round_up(space->base, PAGE);
        all->size = (space->base + size - all->base) / PAGE * PAGE;
        range_insert(&space->free, all);
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult space_take(struct device *device, uint64_t size, uint64_t *address)
{
    struct space *space = &device->space;
    if (space->fd < 0)
        CU_TRY(set_up(device));
    struct range *free_range = range_fit(&space->free, size);
    CU_REQUIRE(free_range, CUDA_ERROR_OUT_OF_MEMORY);
    *address = free_range->base;
    range_remove(&space->free, free_range);
    free_range->base += size;
    free_range->size -= size;
    if (free_range->size)
        range_insert(&space->free, free_range);
    else
        free(free_range);
    return CUDA_SUCCESS;
}

void space_give(struct device *device, uint64_t address, uint64_t size)
{
    struct space *space = &device->space;
    struct range *before = range_at(&space->free, address - 1);
    struct range *after = range_at(&space->free, address + size);
    /* The pages go back to the system; a failure costs memory, nothing else. */
    madvise((void *)(uintptr_t)address, size, MADV_REMOVE);
    struct range *own = before ? before : after ? after : calloc(1, sizeof(*own));
    if (!own)
        return; /* these addresses are not used again */
    if (before)
        range_remove(&space->free, before);
    if (after)
        range_remove(&space->free, after);
    uint64_t base = before ? before->base : address;
    uint64_t end = after ? after->base + after->size : address + size;
    if (before && after)
        free(after);
    own->base = base;
    own->size = end - base;
    range_insert(&space->free, own);
}

/* The first of `count` free units in a row, or UNITS. */
static uint32_t find_units(const struct chunk *chunk, uint32_t count)
{
    uint32_t run = 0;
    if (chunk->used + count > UNITS)
        return UNITS;
    for (uint32_t unit = 0; unit < UNITS; unit++) {
        run = chunk->map[unit / 64] >> unit % 64 & 1 ? 0 : run + 1;
        if (run == count)
            return unit + 1 - count;
    }
    return UNITS;
}

static void flip_units(struct chunk *chunk, uint32_t first, uint32_t count)
{
    for (uint32_t unit = first; unit < first + count; unit++)
        chunk->map[unit / 64] ^= UINT64_C(1) << unit % 64;
}

static CUresult add_chunk(struct device *device)
{
    struct chunk *chunk = calloc(1, sizeof(*chunk));
    CU_REQUIRE(chunk, CUDA_ERROR_OUT_OF_MEMORY);
    CUresult result = ledger_charge(device, PAGE);
    if (result == CUDA_SUCCESS) {
        result = space_take(device, PAGE, &chunk->address);
        if (result != CUDA_SUCCESS)
            ledger_refund(device, PAGE);
    }
    if (result != CUDA_SUCCESS) {
        free(chunk);
        return result;
    }
    chunk->next = device->chunks;
    device->chunks = chunk;
    return CUDA_SUCCESS;
}

CUresult chunk_take(struct device *device, uint64_t size, uint64_t *address, struct chunk **out)
{
    uint32_t count = (uint32_t)((size + UNIT - 1) / UNIT), unit = UNITS;
    struct chunk *chunk = device->chunks;
    for (; chunk; chunk = chunk->next) {
        unit = find_units(chunk, count);
        if (unit < UNITS)
            break;
    }
    if (!chunk) {
        CU_TRY(add_chunk(device));
        chunk = device->chunks;
        unit = 0;
    }
    flip_units(chunk, unit, count);
    chunk->used += count;
    *address = chunk->address + (uint64_t)unit * UNIT;
    *out = chunk;
    return CUDA_SUCCESS;
}

void chunk_give(struct device *device, struct chunk *chunk, uint64_t address, uint64_t size)
{
    uint32_t count = (uint32_t)((size + UNIT - 1) / UNIT);
    flip_units(chunk, (uint32_t)((address - chunk->address) / UNIT), count);
    chunk->used -= count;
    if (chunk->used)
        return;
    for (struct chunk **at = &device->chunks; *at; at = &(*at)->next)
        if (*at == chunk) {
            *at = chunk->next;
            break;
        }
    space_give(device, chunk->address, PAGE);
    if (chunk->export_id)
        ledger_drop(chunk->export_id);
    else
        ledger_refund(device, PAGE);
    free(chunk);
}
