/* Memory and processes, from the shared state. */
#include "library.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <fcntl.h>
#include <unistd.h>

/* A GPU in MIG mode is the sum of its MIG devices. */
static uint64_t partition_used(const struct nvml_device *device)
{
    const struct nvml_library *library = nvml_library();
    uint64_t bytes;
    if (!library || !library->state)
        return 0;
    bytes = sim_partition_bytes(library->state, library->state_fd, SIM_SLOTS, device->partition);
    for (uint32_t m = 0; !device->mig && m < device->gpu->mig_count; m++)
        bytes +=
            sim_partition_bytes(library->state, library->state_fd, SIM_SLOTS, device->partition + 1 + m);
    return bytes;
}

static uint64_t total_of(const struct nvml_device *device)
{
    return device->mig ? device->mig->memory : device->gpu->memory;
}

static uint64_t reserved_of(const struct nvml_device *device)
{
    return device->mig ? 0 : device->gpu->reserved_memory;
}

uint64_t nvml_used(const struct nvml_device *device)
{
    uint64_t room = total_of(device) - reserved_of(device), used = partition_used(device);
    return reserved_of(device) + (used < room ? used : room);
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(memory);
    uint64_t used = nvml_used(device); /* version 1 counts what is reserved as used */
    *memory = (nvmlMemory_t){.total = total_of(device), .used = used, .free = total_of(device) - used};
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(memory);
    if (memory->version != NVML_VERSION_OF(nvmlMemory_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    uint64_t used = nvml_used(device);
    memory->total = total_of(device);
    memory->reserved = reserved_of(device);
    memory->used = used - memory->reserved;
    memory->free = memory->total - used;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t handle, nvmlBAR1Memory_t *memory)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(memory && !device->mig);
    *memory = (nvmlBAR1Memory_t){.total = UINT64_C(128) << 30, .used = 1 << 20};
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

/* The driver lists processes to the host's pid namespace only, measured on driver 580. */
static bool in_host_namespace(const struct sim_state *state)
{
    struct stat st;
    return syscall(SYS_newfstatat, AT_FDCWD, "/proc/self/ns/pid", &st, 0) == 0 &&
           st.st_ino == state->pid_namespace;
}

/* Fills up to `room` records and returns how many there are. */
static uint32_t list_partition(const struct nvml_device *device, const struct nvml_device *of,
                               nvmlProcessInfo_v2_t *out, uint32_t room, uint32_t found)
{
    const struct nvml_library *library = nvml_library();
    const struct sim_state *state = library->state;
    uint32_t used = state ? atomic_load(&state->slots_used) : 0;
    (void)device;
    for (uint32_t slot = 0; slot < used && slot < SIM_SLOTS; slot++) {
        uint64_t bytes = sim_slot_bytes(state, slot, of->partition);
        uint32_t pid = bytes && sim_slot_lives(state, library->state_fd, slot)
                           ? sim_slot_pid(state, library->state_fd, slot)
                           : 0;
        if (!pid)
            continue;
        if (found < room)
            out[found] = (nvmlProcessInfo_v2_t){
                .pid = pid,
                .usedGpuMemory = bytes,
                .gpuInstanceId = of->mig ? of->mig->gpu_instance : NVML_NO_INSTANCE,
                .computeInstanceId = of->mig ? of->mig->compute_instance : NVML_NO_INSTANCE};
        found++;
    }
    return found;
}

static uint32_t list_processes(const struct nvml_device *device, nvmlProcessInfo_v2_t *out, uint32_t room)
{
    const struct nvml_library *library = nvml_library();
    if (!library->state || !in_host_namespace(library->state))
        return 0;
    uint32_t found = list_partition(device, device, out, room, 0);
    const struct nvml_gpu *gpu = &library->gpus[device->index];
    for (uint32_t m = 0; !device->mig && m < gpu->mig_count; m++)
        found = list_partition(device, &gpu->mig[m], out, room, found);
    return found;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned int *count,
                                                              nvmlProcessInfo_v2_t *infos)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(count && (infos || *count == 0));
    unsigned int room = *count;
    *count = list_processes(device, infos, room);
    return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t handle, unsigned int *count,
                                                              nvmlProcessInfo_v2_t *infos)
{
    return nvmlDeviceGetComputeRunningProcesses_v3(handle, count, infos);
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t handle, unsigned int *count,
                                                           nvmlProcessInfo_v1_t *infos)
{
    nvmlProcessInfo_v2_t newest[SIM_SLOTS];
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(count && (infos || *count == 0));
    unsigned int room = *count;
    *count = list_processes(device, newest, SIM_SLOTS);
    for (unsigned int i = 0; i < *count && i < room && i < SIM_SLOTS; i++)
        infos[i] = (nvmlProcessInfo_v1_t){newest[i].pid, newest[i].usedGpuMemory};
    return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* Graphics programs and MPS clients: there are none. */
#define NO_PROCESSES(name, type)                                                                            \
    NVML_API nvmlReturn_t name(nvmlDevice_t handle, unsigned int *count, type *infos)                       \
    {                                                                                                       \
        NVML_DEVICE(device, handle);                                                                        \
        (void)infos;                                                                                        \
        NVML_ARGUMENT(count);                                                                               \
        *count = 0;                                                                                         \
        return NVML_SUCCESS;                                                                                \
    }

NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_v2_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_v2_t)

NVML_API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *utilization)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(utilization);
    if (device->mig || device->gpu->mig_enabled)
        return NVML_ERROR_NOT_SUPPORTED; /* as the driver: no such counter in MIG mode */
    const struct sim_state *state = nvml_library()->state;
    *utilization = (nvmlUtilization_t){0, 0};
    if (state)
        utilization->gpu = sim_partition_utilization(state, device->partition);
    return NVML_SUCCESS;
}
