/* cuMemMap of memory that does not fit, over a driver that takes it back or not: what stays mapped stays charged. */
#include "charge/charge.h"
#include "memory/descriptor.h"
#include "process/log.h"
#include "memory/vmm.h"

#include <stdio.h>
#include <stdlib.h>

#define EXPECT(condition)                                                                                   \
    do {                                                                                                    \
        if (!(condition)) {                                                                                 \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                         \
            exit(1);                                                                                        \
        }                                                                                                   \
    } while (0)

enum { NUMBER = 1, HANDLE = 9, BAD = 1 };
static const CUdeviceptr AT = 16 * PAGE;

void *_Atomic real_entries[REAL_COUNT];
static struct process own;
static CUresult unmap_answer;
static uint64_t charged, refunded;

struct process *_Atomic process_area = &own;

struct process *process_make(void)
{
    return &own;
}

void *wiped_memory(size_t size)
{
    return calloc(1, size);
}

/* There is one thread. */
void turn_take(size_t word)
{
    (void)word;
}

void turn_drop(size_t word)
{
    (void)word;
}

void *real_find(int index)
{
    fprintf(stderr, "entry %d was called\n", index);
    abort();
}

void log_line(const char *format, ...)
{
    (void)format;
}

static CUresult map_it(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                       unsigned long long flags)
{
    (void)at, (void)size, (void)offset, (void)handle, (void)flags;
    return CUDA_SUCCESS;
}

static CUresult unmap_it(CUdeviceptr at, size_t size)
{
    (void)at, (void)size;
    return unmap_answer;
}

bool resident_make_room(int position, uint64_t uncharged)
{
    (void)position;
    (void)uncharged;
    return false;
}

bool charge(int position, uint64_t bytes)
{
    (void)position, (void)bytes;
    return false;
}

void refund(const struct item *item)
{
    refunded += item->bytes;
}

bool target_device(CUdevice ordinal, struct target *out)
{
    (void)ordinal, (void)out;
    return false;
}

bool descriptor_lives(const struct probe *probe, uint64_t mark)
{
    (void)probe, (void)mark;
    return false;
}

void descriptor_unprobe(const struct probe *probe)
{
    (void)probe;
}

void account_commit(int position, uint64_t bytes)
{
    (void)position, (void)bytes;
}

void account_settle(int position, uint64_t reserved, uint64_t taken)
{
    (void)position, (void)reserved;
    charged += taken;
}

void account_withdraw(int position, uint64_t bytes)
{
    (void)position, (void)bytes;
}

static void begin(void)
{
    struct item memory = {.kind = ITEM_MEMORY, .key = NUMBER, .bytes = PAGE, .foreign = 1, .count = 1};
    struct item handle = {.kind = ITEM_HANDLE, .key = HANDLE, .other = NUMBER, .count = 1};
    EXPECT(item_put(&memory) && item_put(&handle));
    charged = PAGE;
    refunded = 0;
}

static uint32_t uses(void)
{
    struct item memory;
    return item_get(ITEM_MEMORY, NUMBER, &memory) ? memory.count : 0;
}

int main(void)
{
    struct item mapping;
    real_entries[REAL_cuMemMap] = (void *)map_it;
    real_entries[REAL_cuMemUnmap] = (void *)unmap_it;

    begin();
    EXPECT(cuMemMap(AT, 4 * PAGE, 0, HANDLE, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(uses() == 1 && !item_get(ITEM_MAPPING, AT, &mapping) && charged == PAGE && !refunded);

    unmap_answer = BAD;
    EXPECT(cuMemMap(AT, 4 * PAGE, 0, HANDLE, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(uses() == 2 && item_get(ITEM_MAPPING, AT, &mapping) && charged == 4 * PAGE && !refunded);
    memory_drop(NUMBER); /* its handle */
    EXPECT(uses() == 1 && !refunded);

    unmap_answer = CUDA_SUCCESS;
    EXPECT(cuMemUnmap(AT, 4 * PAGE) == CUDA_SUCCESS);
    EXPECT(uses() == 0 && refunded == charged);
    return 0;
}
