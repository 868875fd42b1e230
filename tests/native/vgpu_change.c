/* Wrappers over functions in the driver's place, which change what the program gave as another thread would: while the
 * shim looks, and while it waits. The driver is to get what was looked at. */
#include "gate.h"
#include "local.h"

#include <stdio.h>
#include <stdlib.h>

#define EXPECT(condition)                                                                                   \
    do {                                                                                                    \
        if (!(condition)) {                                                                                 \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                         \
            exit(1);                                                                                        \
        }                                                                                                   \
    } while (0)

enum { DEVICES = 2, PIECES = 4, PLACES = 2, MANAGED = 8, PAGEABLE = 88 };

#define HANDLE(type, number) ((type)(uintptr_t)(number))

void *_Atomic real_entries[REAL_COUNT];
struct process *_Atomic process_area;
_Atomic bool window_closed;
_Atomic uint64_t window_due = 1;

static CUDA_LAUNCH_PARAMS kernels[DEVICES];
static CUdeviceptr addresses[PIECES];
static size_t sizes[PIECES], from[PLACES];
static CUmemLocation places[PLACES];
static unsigned int calls, seen, entered, left;
static bool is_managed, fits;

struct process *process_make(void)
{
    return NULL;
}

void *real_find(int index)
{
    fprintf(stderr, "entry %d was called\n", index);
    abort();
}

uint64_t now_ns(clockid_t clock)
{
    (void)clock;
    return 0;
}

void meter_close_stream(CUstream stream)
{
    (void)stream;
}

bool local_allows(CUfunction function, CUstream stream)
{
    (void)function, (void)stream;
    return true;
}

/* Each function of the program's list becomes another one when it was looked at. */
bool local_allows_list(const CUDA_LAUNCH_PARAMS *list, unsigned int count)
{
    for (unsigned int i = 0; i < count; i++) {
        EXPECT(list[i].function == HANDLE(CUfunction, 1 + i));
        kernels[i].function = HANDLE(CUfunction, 91 + i);
    }
    return fits;
}

/* And each stream, while the launch waits at the gate. */
CUresult gate_enter(struct launch *launch, CUstream stream, bool per_thread)
{
    (void)launch, (void)per_thread;
    EXPECT(stream == HANDLE(CUstream, 11 + entered));
    kernels[entered++].hStream = HANDLE(CUstream, 99);
    return CUDA_SUCCESS;
}

void gate_leave(struct launch *launch, CUresult result)
{
    (void)launch, (void)result;
    left++;
}

static CUresult launch_all(CUDA_LAUNCH_PARAMS *list, unsigned int count, unsigned int flags)
{
    (void)flags;
    calls++;
    for (unsigned int i = 0; list && i < count; i++)
        EXPECT(list[i].function == HANDLE(CUfunction, 1 + i) &&
               list[i].hStream == HANDLE(CUstream, 11 + i) && list[i].sharedMemBytes == i);
    return CUDA_SUCCESS;
}

static CUresult launch(unsigned int count)
{
    for (unsigned int i = 0; i < DEVICES; i++)
        kernels[i] = (CUDA_LAUNCH_PARAMS){
            .function = HANDLE(CUfunction, 1 + i), .hStream = HANDLE(CUstream, 11 + i), .sharedMemBytes = i};
    calls = entered = left = 0;
    return cuLaunchCooperativeKernelMultiDevice(kernels, count, 0);
}

static void launches(void)
{
    real_entries[REAL_cuLaunchCooperativeKernelMultiDevice] = (void *)launch_all;
    for (int closed = 0; closed <= 1; closed++) {
        window_closed = closed;
        fits = true;
        EXPECT(launch(DEVICES) == CUDA_SUCCESS && calls == 1);
        EXPECT(entered == (closed ? DEVICES : 0) && left == entered);
        /* The driver's to refuse: */
        EXPECT(launch(0) == CUDA_SUCCESS && calls == 1 && !entered);
        EXPECT(cuLaunchCooperativeKernelMultiDevice(NULL, DEVICES, 0) == CUDA_SUCCESS && calls == 2);
        EXPECT(launch(VGPU_DEVICES + 1) == CUDA_ERROR_INVALID_VALUE && !calls && !entered);
        fits = false;
        EXPECT(launch(DEVICES) == CUDA_ERROR_OUT_OF_MEMORY && !calls && !entered);
    }
}

bool target_current(struct target *out)
{
    (void)out;
    return false;
}

bool target_device(CUdevice ordinal, struct target *out)
{
    *out = (struct target){.position = ordinal, .ordinal = ordinal};
    return true;
}

bool account_view(int position, struct account_view *out)
{
    (void)position;
    out->limit = 1;
    return true;
}

bool item_get(enum kind kind, uint64_t key, struct item *out)
{
    (void)kind, (void)key, (void)out;
    return false;
}

static CUresult count_devices(int *out)
{
    *out = 1;
    return CUDA_SUCCESS;
}

static CUresult tell_of_device(int *out, int attribute, CUdevice device)
{
    (void)device;
    *out = attribute == PAGEABLE;
    return CUDA_SUCCESS;
}

/* All of the program's lists become others when the first address is looked at. */
static CUresult tell_of_address(void *out, int attribute, CUdeviceptr address)
{
    EXPECT(attribute == MANAGED && address == 1000 + seen++);
    *(unsigned int *)out = is_managed;
    for (unsigned int i = 0; i < PIECES; i++)
        addresses[i] = sizes[i] = 0;
    for (unsigned int i = 0; i < PLACES; i++)
        places[i] = (CUmemLocation){.id = -1}, from[i] = 0;
    return CUDA_SUCCESS;
}

static CUresult move(CUdeviceptr *list, size_t *lengths, size_t count, CUmemLocation *where, size_t *first,
                     size_t locations, unsigned long long flags, CUstream stream)
{
    calls++;
    EXPECT(count == PIECES && flags == 7 && stream == HANDLE(CUstream, 8));
    for (size_t i = 0; list && i < count; i++)
        EXPECT(list[i] == 1000 + i && lengths[i] == 2000 + i);
    for (size_t i = 0; list && i < locations; i++)
        EXPECT(where[i].type == CU_LOCATION_DEVICE && where[i].id == (int)i && first[i] == 3 * i);
    return CUDA_SUCCESS;
}

static CUresult prefetch(type_cuMemPrefetchBatchAsync call, bool managed, size_t locations)
{
    for (unsigned int i = 0; i < PIECES; i++)
        addresses[i] = 1000 + i, sizes[i] = 2000 + i;
    for (unsigned int i = 0; i < PLACES; i++)
        places[i] = (CUmemLocation){CU_LOCATION_DEVICE, (int)i}, from[i] = 3 * i;
    is_managed = managed;
    calls = seen = 0;
    return call(addresses, sizes, PIECES, places, from, locations, 7, HANDLE(CUstream, 8));
}

static void prefetches(type_cuMemPrefetchBatchAsync call, int index)
{
    real_entries[index] = (void *)move;
    EXPECT(prefetch(call, true, PLACES) == CUDA_SUCCESS && calls == 1 && seen == PIECES);
    EXPECT(prefetch(call, false, PLACES) == CUDA_ERROR_NOT_SUPPORTED && !calls && seen == 1);
    EXPECT(prefetch(call, true, PIECES + 1) == CUDA_ERROR_INVALID_VALUE && !calls && !seen);
    /* The driver's to refuse: */
    EXPECT(prefetch(call, true, 0) == CUDA_SUCCESS && calls == 1 && !seen);
    CUresult result = call(NULL, sizes, PIECES, places, from, PLACES, 7, HANDLE(CUstream, 8));
    EXPECT(result == CUDA_SUCCESS && calls == 2 && !seen);
}

int main(void)
{
    launches();
    real_entries[REAL_cuDeviceGetCount] = (void *)count_devices;
    real_entries[REAL_cuDeviceGetAttribute] = (void *)tell_of_device;
    real_entries[REAL_cuPointerGetAttribute] = (void *)tell_of_address;
#define PREFETCHES(name) prefetches(name, REAL_##name)
    PREFETCHES(cuMemPrefetchBatchAsync);
    PREFETCHES(cuMemPrefetchBatchAsync_ptsz);
    PREFETCHES(cuMemDiscardAndPrefetchBatchAsync);
    PREFETCHES(cuMemDiscardAndPrefetchBatchAsync_ptsz);
    return 0;
}
