/* Memory and how busy a device is, from the shared state. */
#include "library.h"
#include "limit.h"

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
    const struct nvml_library *library = nvml_library();
    const struct sim_limit *limit =
        library->state && !device->mig ? sim_own_limit(library->state, device->partition, true) : NULL;
    uint64_t hard = limit ? atomic_load(&limit->hard) : SIM_NO_LIMIT;
    if (hard < memory->total) { /* in a cgroup with a limit, the device is that */
        used = sim_cgroup_bytes(library->state, library->state_fd, SIM_SLOTS, atomic_load(&limit->cgroup),
                                device->partition);
        memory->total = hard;
        memory->reserved = 0;
        memory->used = used < hard ? used : hard;
        memory->free = hard - memory->used;
    }
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
