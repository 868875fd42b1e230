/* Processes on a device, from the shared state. */
#include "library.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The driver lists processes to the host's pid namespace only, measured on driver 580. */
static bool in_host_namespace(const struct sim_state *state)
{
    struct stat st;
    return syscall(SYS_newfstatat, AT_FDCWD, "/proc/self/ns/pid", &st, 0) == 0 &&
           st.st_ino == state->pid_namespace;
}

/* Fills up to `room` records and returns how many there are. */
static uint32_t list_partition(const struct nvml_device *of, nvmlProcessInfo_v2_t *out, uint32_t room,
                               uint32_t found)
{
    const struct nvml_library *library = nvml_library();
    const struct sim_state *state = library->state;
    uint32_t used = state ? atomic_load(&state->slots_used) : 0;
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
    uint32_t found = list_partition(device, out, room, 0);
    const struct nvml_gpu *gpu = &library->gpus[device->index];
    for (uint32_t m = 0; !device->mig && m < gpu->mig_count; m++)
        found = list_partition(&gpu->mig[m], out, room, found);
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

/* The entry of a slot for a partition; NULL: none. */
static const struct sim_use *use_of(const struct sim_slot *slot, uint32_t partition)
{
    for (uint32_t i = 0; i < SIM_USES; i++)
        if (atomic_load(&slot->uses[i].partition) == partition + 1)
            return &slot->uses[i];
    return NULL;
}

static uint64_t microseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000;
}

/* One sample for each process, of the last full second. Samples are as old as the call, so none is older than what
 * the caller has seen. */
NVML_API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t handle,
                                                      nvmlProcessUtilizationSample_t *samples,
                                                      unsigned int *count, unsigned long long last_seen)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(count && (samples || *count == 0));
    const struct nvml_library *library = nvml_library();
    const struct sim_state *state = library->state;
    unsigned int room = *count, found = 0;
    uint64_t now = microseconds();
    if (device->mig || device->gpu->mig_enabled)
        return NVML_ERROR_NOT_SUPPORTED;
    uint32_t used =
        state && in_host_namespace(state) && last_seen < now ? atomic_load(&state->slots_used) : 0;
    for (uint32_t slot = 0; slot < used && slot < SIM_SLOTS; slot++) {
        const struct sim_use *use = use_of(&state->slots[slot], device->partition);
        uint32_t pid = use && sim_slot_lives(state, library->state_fd, slot)
                           ? sim_slot_pid(state, library->state_fd, slot)
                           : 0;
        if (!pid)
            continue;
        if (found < room)
            samples[found] = (nvmlProcessUtilizationSample_t){
                .pid = pid, .timeStamp = now, .smUtil = sim_use_utilization(use)};
        found++;
    }
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : found ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
