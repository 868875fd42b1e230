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

NVML_GET(nvmlDeviceGetMaxMigDeviceCount, unsigned int, !device->mig, device->gpu->mig_capable ? 7 : 0)

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

NVML_GET(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, nvmlDevice_t, device->mig,
         &nvml_library()->gpus[device->index].device)

NVML_GET(nvmlDeviceIsMigDeviceHandle, unsigned int, true, device->mig != NULL)

NVML_GET(nvmlDeviceGetGpuInstanceId, unsigned int, device->mig, device->mig->gpu_instance)

NVML_GET(nvmlDeviceGetComputeInstanceId, unsigned int, device->mig, device->mig->compute_instance)

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
