/* GPU instances and compute instances, which are what MIG devices are made of. Here each GPU instance has one compute
 * instance of its size, so that the handle of a MIG device is the handle of both too. */
#include "library.h"

#include <stddef.h>

typedef nvmlDevice_t nvmlInstance_t;

/* By NVML's numbers of profiles, which are those of compute instances too; the ids are an H100's and an A100's. */
static const struct profile {
    unsigned int slices, id, most; /* compute slices, id of the driver, how many fit on a GPU */
    unsigned int memory_slices;
} profiles[] = {
    [0] = {1, 19, 7, 1}, [1] = {2, 14, 3, 2}, [2] = {3, 9, 2, 4},
    [3] = {4, 5, 1, 4},  [4] = {7, 0, 1, 8},  [9] = {1, 15, 4, 2},
};

enum {
    PROFILES = sizeof(profiles) / sizeof(profiles[0]),
    PROFILES_KNOWN = 0x12,
    COMPUTE_PROFILES_KNOWN = 9
};

/* Eighths of the GPU's memory. */
static unsigned int memory_slices(const struct nvml_device *mig)
{
    return (unsigned int)((mig->mig->memory * 8 + mig->gpu->memory / 2) / mig->gpu->memory);
}

/* The number of a MIG device's profile; PROFILES where none is like it. */
static unsigned int profile_of(const struct nvml_device *mig)
{
    unsigned int number = 0;
    while (number < PROFILES && (profiles[number].slices != mig->mig->gpu_slices ||
                                 profiles[number].memory_slices != memory_slices(mig)))
        number++;
    return number;
}

static const struct nvml_device *instance_checked(nvmlInstance_t handle)
{
    const struct nvml_device *device = nvml_checked(handle);
    return device && device->mig && profile_of(device) < PROFILES ? device : NULL;
}

#define NVML_INSTANCE(name, handle)                                                                         \
    const struct nvml_device *name = instance_checked(handle);                                              \
    if (!nvml_library())                                                                                    \
        return NVML_ERROR_UNINITIALIZED;                                                                    \
    NVML_ARGUMENT(name)

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t handle, unsigned int id, nvmlInstance_t *out)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(out && !device->mig);
    if (!device->gpu->mig_enabled)
        return NVML_ERROR_NOT_SUPPORTED;
    struct nvml_gpu *gpu = &nvml_library()->gpus[device->index];
    for (uint32_t i = 0; i < gpu->mig_count; i++)
        if (gpu->mig[i].mig->gpu_instance == id) {
            *out = &gpu->mig[i];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

/* Only of profiles that the GPU has a device of: the description knows no others. */
NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t handle, unsigned int profile,
                                                          nvmlGpuInstanceProfileInfo_t *out)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(out && !device->mig && profile < PROFILES_KNOWN);
    const struct nvml_gpu *gpu = &nvml_library()->gpus[device->index];
    for (uint32_t i = 0; i < gpu->mig_count; i++)
        if (profile_of(&gpu->mig[i]) == profile && profile < PROFILES) {
            *out = (nvmlGpuInstanceProfileInfo_t){
                .id = profiles[profile].id,
                .sliceCount = profiles[profile].slices,
                .instanceCount = profiles[profile].most,
                .multiprocessorCount = gpu->mig[i].mig->multiprocessors,
                .copyEngineCount = 1,
                .memorySizeMB = gpu->mig[i].mig->memory >> 20,
            };
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_SUPPORTED;
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlInstance_t handle, nvmlGpuInstanceInfo_t *out)
{
    NVML_INSTANCE(instance, handle);
    NVML_ARGUMENT(out);
    struct nvml_gpu *gpu = &nvml_library()->gpus[instance->index];
    unsigned int start = 0;
    for (const struct nvml_device *mig = gpu->mig; mig != instance; mig++)
        start += memory_slices(mig);
    *out = (nvmlGpuInstanceInfo_t){
        .device = &gpu->device,
        .id = instance->mig->gpu_instance,
        .profileId = profiles[profile_of(instance)].id,
        .start = start,
        .size = memory_slices(instance),
    };
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlInstance_t handle, unsigned int id,
                                                            nvmlInstance_t *out)
{
    NVML_INSTANCE(instance, handle);
    NVML_ARGUMENT(out);
    if (instance->mig->compute_instance != id)
        return NVML_ERROR_NOT_FOUND;
    *out = handle;
    return NVML_SUCCESS;
}

/* A compute instance's profile by the slices that it has; `profiles` counts them alike up to 7. */
static unsigned int compute_profile(const struct nvml_device *instance)
{
    unsigned int number = 0;
    while (profiles[number].slices != instance->mig->compute_slices)
        number++;
    return number;
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlInstance_t handle,
                                                                   unsigned int profile,
                                                                   unsigned int engines,
                                                                   nvmlComputeInstanceProfileInfo_t *out)
{
    NVML_INSTANCE(instance, handle);
    NVML_ARGUMENT(out && profile < COMPUTE_PROFILES_KNOWN && engines == 0);
    if (profile != compute_profile(instance))
        return NVML_ERROR_NOT_SUPPORTED;
    *out = (nvmlComputeInstanceProfileInfo_t){
        .id = profile,
        .sliceCount = instance->mig->compute_slices,
        .instanceCount = 1,
        .multiprocessorCount = instance->mig->multiprocessors,
        .sharedCopyEngineCount = 1,
    };
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlInstance_t handle, nvmlComputeInstanceInfo_t *out)
{
    NVML_INSTANCE(instance, handle);
    NVML_ARGUMENT(out);
    *out = (nvmlComputeInstanceInfo_t){
        .device = &nvml_library()->gpus[instance->index].device,
        .gpuInstance = handle,
        .id = instance->mig->compute_instance,
        .profileId = compute_profile(instance),
        .size = instance->mig->compute_slices,
    };
    return NVML_SUCCESS;
}
