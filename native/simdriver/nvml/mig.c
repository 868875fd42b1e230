/* Multi-instance GPUs. */
#include "library.h"

#include <string.h>

NVML_API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned int *current, unsigned int *pending)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(current && pending && !device->mig);
    if (!device->gpu->mig_capable)
        return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = device->gpu->mig_enabled;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t handle, unsigned int *count)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(count && !device->mig);
    *count = device->gpu->mig_capable ? 7 : 0;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t handle, unsigned int index,
                                                          nvmlDevice_t *mig)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(mig && !device->mig);
    struct nvml_gpu *gpu = &nvml_library()->gpus[device->index];
    if (!device->gpu->mig_capable)
        return NVML_ERROR_NOT_SUPPORTED;
    if (index >= gpu->mig_count)
        return NVML_ERROR_NOT_FOUND;
    *mig = &gpu->mig[index];
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t handle, nvmlDevice_t *parent)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(parent && device->mig);
    *parent = &nvml_library()->gpus[device->index].device;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t handle, unsigned int *is_mig)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(is_mig);
    *is_mig = device->mig != NULL;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t handle, unsigned int *id)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(id && device->mig);
    *id = device->mig->gpu_instance;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t handle, unsigned int *id)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(id && device->mig);
    *id = device->mig->compute_instance;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t handle, nvmlDeviceAttributes_t *attributes)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(attributes);
    if (!device->mig)
        return NVML_ERROR_NOT_SUPPORTED;
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = device->mig->multiprocessors,
        .sharedCopyEngineCount = 1,
        .gpuInstanceSliceCount = device->mig->gpu_slices,
        .computeInstanceSliceCount = device->mig->compute_slices,
        .memorySizeMB = device->mig->memory >> 20,
    };
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t handle, nvmlDeviceAttributes_t *attributes)
{
    return nvmlDeviceGetAttributes_v2(handle, attributes);
}
