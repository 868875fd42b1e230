/* Memory of another process, by handles that name a descriptor of it. As with the real driver, both processes must
 * be in one pid namespace, and the importer must be allowed to look into the exporter. */
#include "pool.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HANDLE_MAGIC UINT32_C(0x63706973) /* "sipc" */

/* What the 64 bytes of a handle hold, of memory of either kind. */
struct handle {
    uint32_t magic;
    int32_t pid, fd;
    uint32_t partition;
    uint64_t offset, size;
    uint64_t export_id; /* of the memory, or of the chunk that a small allocation lies in; 0: a pool's */
    uint64_t inode;     /* of the exporter's memory: pids are used again */
};

_Static_assert(sizeof(struct handle) <= sizeof(CUipcMemHandle), "CUDA layout");

static CUresult describe(struct handle *out, const struct memory *memory)
{
    struct stat st;
    const struct space *space = &memory->device->space;
    CU_REQUIRE(syscall(SYS_fstat, space->fd, &st) == 0, CUDA_ERROR_OPERATING_SYSTEM);
    *out = (struct handle){
        .magic = HANDLE_MAGIC,
        .pid = getpid(),
        .fd = space->fd,
        .partition = memory->device->partition,
        .offset = memory->range.base - space->base,
        .size = memory->range.size,
        .export_id = memory->chunk ? memory->chunk->export_id : memory->export_id,
        .inode = st.st_ino,
    };
    return CUDA_SUCCESS;
}

static CUresult get_handle(CUipcMemHandle *out, CUdeviceptr address)
{
    CU_CONTEXT(context);
    struct memory *memory = memory_find(address);
    struct handle handle;
    CU_ARGUMENT(out && memory && memory->kind == MEMORY_DEVICE);
    if (memory->chunk && !memory->chunk->export_id)
        CU_TRY(ledger_export(memory->device, PAGE, &memory->chunk->export_id));
    if (!memory->export_id && memory->charged) {
        CU_TRY(ledger_export(memory->device, memory->charged, &memory->export_id));
        memory->charged = 0;
    }
    CU_TRY(describe(&handle, memory));
    memset(out, 0, sizeof(*out));
    memcpy(out, &handle, sizeof(handle));
    return CUDA_SUCCESS;
}

CU_EXPORT(cuIpcGetMemHandle, (CUipcMemHandle * out, CUdeviceptr address), get_handle(out, address))

static struct device *device_of(uint32_t partition)
{
    for (uint32_t i = 0; i < driver()->device_count; i++)
        if (driver()->devices[i].partition == partition)
            return &driver()->devices[i];
    return NULL;
}

/* Maps the exporter's memory. Mappings begin at pages, allocations need not. */
static CUresult map_foreign(const struct handle *handle, struct memory *memory)
{
    char path[64];
    struct stat st;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), skip = handle->offset % page;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle->pid, handle->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    CU_REQUIRE(fd >= 0, CUDA_ERROR_INVALID_HANDLE);
    void *at = MAP_FAILED;
    if (syscall(SYS_fstat, fd, &st) == 0 && st.st_ino == handle->inode &&
        handle->size <= (uint64_t)st.st_size && handle->offset <= (uint64_t)st.st_size - handle->size)
        at = mmap(NULL, handle->size + skip, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd,
                  (off_t)(handle->offset - skip));
    close(fd);
    CU_REQUIRE(at != MAP_FAILED, CUDA_ERROR_INVALID_HANDLE);
    memory->range.base = (uint64_t)(uintptr_t)at + skip;
    memory->offset = skip;
    memory->taken = handle->size + skip;
    return CUDA_SUCCESS;
}

static CUresult open_handle(CUdeviceptr *out, const CUipcMemHandle *from, unsigned int flags)
{
    struct handle handle;
    CU_CONTEXT(context);
    memcpy(&handle, from, sizeof(handle));
    CU_ARGUMENT(out && flags == 1);
    CU_REQUIRE(handle.magic == HANDLE_MAGIC && handle.size, CUDA_ERROR_INVALID_HANDLE);
    CU_REQUIRE(handle.pid != getpid(), CUDA_ERROR_INVALID_CONTEXT);
    struct device *device = device_of(handle.partition);
    CU_REQUIRE(device, CUDA_ERROR_INVALID_DEVICE);
    struct memory *memory = memory_new(context, MEMORY_IMPORTED, handle.size);
    CU_REQUIRE(memory, CUDA_ERROR_OUT_OF_MEMORY);
    memory->device = device;
    CUresult result = map_foreign(&handle, memory);
    if (result == CUDA_SUCCESS && handle.export_id) {
        result = ledger_hold(handle.export_id);
        if (result != CUDA_SUCCESS)
            munmap((void *)(uintptr_t)(memory->range.base - memory->offset), memory->taken);
    }
    if (result != CUDA_SUCCESS) {
        free(memory);
        return result;
    }
    memory->export_id = handle.export_id;
    memory_enter(memory);
    *out = memory->range.base;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuIpcOpenMemHandle_v2, (CUdeviceptr * out, CUipcMemHandle handle, unsigned int flags),
          open_handle(out, &handle, flags))
CU_EXPORT(cuIpcOpenMemHandle, (CUdeviceptr * out, CUipcMemHandle handle, unsigned int flags),
          open_handle(out, &handle, flags))

/* The process holds an export once, however often it opened it. */
static bool is_open_elsewhere(const struct memory *memory)
{
    uint64_t from = 0;
    for (const struct range *range; (range = range_from(&driver()->memory, from)) != NULL;) {
        const struct memory *other = (const struct memory *)range;
        if (other != memory && other->kind == MEMORY_IMPORTED && other->export_id == memory->export_id)
            return true;
        from = range->base + 1;
    }
    return false;
}

void ipc_closed(struct memory *memory)
{
    munmap((void *)(uintptr_t)(memory->range.base - memory->offset), memory->taken);
    if (memory->export_id && !is_open_elsewhere(memory))
        ledger_drop(memory->export_id);
}

/* Memory of a pool stays its exporter's, who is to free it last. */
static CUresult export_pointer(CUmemPoolPtrExportData *out, CUdeviceptr address)
{
    CU_CONTEXT(context);
    struct memory *memory = memory_find(address);
    struct handle handle;
    CU_ARGUMENT(out && memory && memory->kind == MEMORY_POOL && !memory->freed_on && memory->pool->shared);
    CU_TRY(describe(&handle, memory));
    memset(out, 0, sizeof(*out));
    memcpy(out, &handle, sizeof(handle));
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemPoolExportPointer, (CUmemPoolPtrExportData * out, CUdeviceptr address),
          export_pointer(out, address))

static CUresult import_pointer(CUdeviceptr *out, CUmemoryPool pool, const CUmemPoolPtrExportData *data)
{
    struct handle handle;
    CU_CONTEXT(context);
    CU_ARGUMENT(out && data && handle_is(pool, KIND_POOL) && pool->imported);
    memcpy(&handle, data, sizeof(handle));
    CU_REQUIRE(handle.magic == HANDLE_MAGIC && handle.size && device_of(handle.partition) == pool->device,
               CUDA_ERROR_INVALID_VALUE);
    struct memory *memory = memory_new(context, MEMORY_IMPORTED, handle.size);
    CU_REQUIRE(memory, CUDA_ERROR_OUT_OF_MEMORY);
    memory->device = pool->device;
    memory->pool = pool;
    CUresult result = map_foreign(&handle, memory);
    if (result != CUDA_SUCCESS) {
        free(memory);
        return result;
    }
    memory_enter(memory);
    *out = memory->range.base;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuMemPoolImportPointer, (CUdeviceptr * out, CUmemoryPool pool, CUmemPoolPtrExportData *data),
          import_pointer(out, pool, data))

static CUresult close_handle(CUdeviceptr address)
{
    CU_CONTEXT(context);
    struct memory *memory = memory_find(address);
    CU_ARGUMENT(memory && memory->kind == MEMORY_IMPORTED && !memory->pool && memory->range.base == address);
    memory_release(memory);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuIpcCloseMemHandle, (CUdeviceptr address), close_handle(address))
