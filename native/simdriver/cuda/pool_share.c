/* Pools that go to other processes: a descriptor that says whose and on which device. */
#include "pool.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x6c6f6f702d6d6973) /* "sim-pool" */

struct note {
    uint64_t magic;
    char uuid[64];
};

static const char *uuid_of(const struct device *device)
{
    return device->mig ? device->mig->uuid : device->gpu->uuid;
}

static CUresult export_pool(int *out, CUmemoryPool pool, int type, unsigned long long flags)
{
    struct note note = {.magic = MAGIC};
    CU_ARGUMENT(out && flags == 0 && handle_is(pool, KIND_POOL) && pool->shared);
    CU_ARGUMENT(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    snprintf(note.uuid, sizeof(note.uuid), "%s", uuid_of(pool->device));
    int fd = memory_file("nvidia-sim-pool", sizeof(note));
    CU_REQUIRE(fd >= 0 && pwrite(fd, &note, sizeof(note), 0) == sizeof(note), CUDA_ERROR_OPERATING_SYSTEM);
    *out = fd;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemPoolExportToShareableHandle,
          (void *out, CUmemoryPool pool, int type, unsigned long long flags),
          export_pool(out, pool, type, flags))

static CUresult import_pool(CUmemoryPool *out, int fd, int type, unsigned long long flags)
{
    struct note note;
    CU_ARGUMENT(out && flags == 0 && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CU_ARGUMENT(pread(fd, &note, sizeof(note), 0) == sizeof(note) && note.magic == MAGIC);
    for (uint32_t i = 0; i < driver()->device_count; i++) {
        struct device *device = &driver()->devices[i];
        if (strncmp(uuid_of(device), note.uuid, sizeof(note.uuid)) != 0)
            continue;
        CU_TRY(pool_create(device, out));
        (*out)->imported = true;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

CU_EXPORT(cuMemPoolImportFromShareableHandle,
          (CUmemoryPool * out, void *handle, int type, unsigned long long flags),
          import_pool(out, (int)(intptr_t)handle, type, flags))
