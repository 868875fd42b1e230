/* Handles of memory that go to other processes: descriptors. */
#include "vmm.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TRAILER_MAGIC UINT64_C(0x6d6d762d6d6973) /* "sim-vmm" */

/* Every export is an open file of its own, and none is the driver's, as on hardware. */
static int open_again(int fd)
{
    char path[32];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

static CUresult export_handle(int *out, struct vmm *vmm, int type)
{
    CU_ARGUMENT(out && vmm);
    CU_REQUIRE(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_NOT_SUPPORTED);
    CU_ARGUMENT(vmm->properties.requestedHandleTypes & type && vmm->device);
    if (!vmm->export_id)
        CU_TRY(ledger_export(vmm->device, vmm->size, &vmm->export_id));
    struct vmm_trailer trailer = {.magic = TRAILER_MAGIC, .size = vmm->size, .export_id = vmm->export_id};
    memcpy(trailer.uuid, vmm->device->mig ? vmm->device->mig->uuid : vmm->device->gpu->uuid,
           sizeof(trailer.uuid));
    CU_REQUIRE(pwrite(vmm->fd, &trailer, sizeof(trailer), (off_t)vmm->size) == sizeof(trailer),
               CUDA_ERROR_OPERATING_SYSTEM);
    *out = open_again(vmm->fd);
    return *out < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

CU_API CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, int type,
                                             unsigned long long flags)
{
    CU_ARGUMENT(flags == 0);
    CU_CALL(export_handle(out, vmm_of(handle), type));
}

static CUresult read_trailer(int fd, struct vmm_trailer *trailer, struct device **device)
{
    struct stat st;
    CU_ARGUMENT(syscall(SYS_fstat, fd, &st) == 0 && st.st_size > (off_t)sizeof(*trailer));
    CU_ARGUMENT(pread(fd, trailer, sizeof(*trailer), st.st_size - (off_t)sizeof(*trailer)) ==
                sizeof(*trailer));
    CU_ARGUMENT(trailer->magic == TRAILER_MAGIC && trailer->size == (uint64_t)st.st_size - sizeof(*trailer));
    CU_ARGUMENT(trailer->size % PAGE == 0 && memchr(trailer->uuid, '\0', sizeof(trailer->uuid)));
    for (uint32_t i = 0; i < driver()->device_count; i++) {
        struct device *at = &driver()->devices[i];
        if (strcmp(at->mig ? at->mig->uuid : at->gpu->uuid, trailer->uuid) == 0) {
            *device = at;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

struct search {
    uint64_t export_id;
    struct vmm *found;
};

static void find_export(void *object, void *data)
{
    struct vmm *vmm = object;
    struct search *search = data;
    if (vmm->export_id == search->export_id)
        search->found = vmm;
}

static CUresult import(CUmemGenericAllocationHandle *out, int fd, int type)
{
    struct vmm_trailer trailer;
    struct device *device;
    CU_ARGUMENT(out);
    CU_REQUIRE(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_NOT_SUPPORTED);
    CU_TRY(read_trailer(fd, &trailer, &device));
    struct search search = {.export_id = trailer.export_id};
    handle_each(KIND_VMM, find_export, &search);
    struct vmm *vmm = search.found;
    if (!vmm) {
        CU_TRY(ledger_hold(trailer.export_id));
        vmm = handle_new(KIND_VMM, sizeof(*vmm));
        CU_REQUIRE(vmm, CUDA_ERROR_OUT_OF_MEMORY);
        vmm->device = device;
        vmm->size = trailer.size;
        vmm->export_id = trailer.export_id;
        int own = open_again(fd);
        vmm->fd = own < 0 ? -1 : fcntl(own, F_DUPFD_CLOEXEC, 512);
        if (own >= 0)
            close(own);
        vmm->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        vmm->properties.requestedHandleTypes = type;
        vmm->properties.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device->ordinal};
    }
    vmm->handles++;
    *out = (uint64_t)(uintptr_t)vmm;
    return vmm->fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

CU_EXPORT(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle * out, void *os_handle, int type),
          import(out, (int)(intptr_t)os_handle, type))
