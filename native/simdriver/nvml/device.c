/* Handles, names and numbers of devices. */
#include "library.h"

#include <stdio.h>
#include <string.h>

NVML_API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    const struct nvml_library *library = nvml_library();
    if (!library)
        return NVML_ERROR_UNINITIALIZED;
    NVML_ARGUMENT(count);
    *count = library->gpu_count;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
    return nvmlDeviceGetCount_v2(count);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    struct nvml_library *library = nvml_library();
    if (!library)
        return NVML_ERROR_UNINITIALIZED;
    NVML_ARGUMENT(device && index < library->gpu_count);
    *device = &library->gpus[index].device;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    struct nvml_library *library = nvml_library();
    if (!library)
        return NVML_ERROR_UNINITIALIZED;
    NVML_ARGUMENT(uuid && device);
    for (uint32_t i = 0; i < library->gpu_count; i++) {
        struct nvml_gpu *gpu = &library->gpus[i];
        if (strcmp(uuid, gpu->device.gpu->uuid) == 0) {
            *device = &gpu->device;
            return NVML_SUCCESS;
        }
        for (uint32_t m = 0; m < gpu->mig_count; m++)
            if (strcmp(uuid, gpu->mig[m].mig->uuid) == 0) {
                *device = &gpu->mig[m];
                return NVML_SUCCESS;
            }
    }
    return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    struct nvml_library *library = nvml_library();
    unsigned int domain, bus, slot, function = 0;
    if (!library)
        return NVML_ERROR_UNINITIALIZED;
    NVML_ARGUMENT(bus_id && device && strlen(bus_id) < 32);
    if (sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
        domain = 0;
        NVML_ARGUMENT(sscanf(bus_id, "%x:%x.%x", &bus, &slot, &function) >= 2);
    }
    for (uint32_t i = 0; i < library->gpu_count; i++) {
        const struct sim_gpu *gpu = library->gpus[i].device.gpu;
        if (gpu->pci_domain == domain && gpu->pci_bus == bus && gpu->pci_device == slot && function == 0) {
            *device = &library->gpus[i].device;
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    struct nvml_library *library = nvml_library();
    if (!library)
        return NVML_ERROR_UNINITIALIZED;
    NVML_ARGUMENT(serial && device);
    for (uint32_t i = 0; i < library->gpu_count; i++)
        if (strcmp(serial, library->gpus[i].device.gpu->serial) == 0) {
            *device = &library->gpus[i].device;
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

NVML_GET(nvmlDeviceGetIndex, unsigned int, true, device->mig ? device->mig_index : device->index)

NVML_GET(nvmlDeviceGetMinorNumber, unsigned int, !device->mig, device->gpu->minor)

NVML_API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned int length)
{
    NVML_DEVICE(device, handle);
    return nvml_copy(device->mig ? device->mig->uuid : device->gpu->uuid, uuid, length);
}

NVML_API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *name, unsigned int length)
{
    NVML_DEVICE(device, handle);
    char text[160];
    if (!device->mig)
        return nvml_copy(device->gpu->name, name, length);
    snprintf(text, sizeof(text), "%s MIG %s", device->gpu->name, device->mig->profile);
    return nvml_copy(text, name, length);
}

NVML_API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t handle, char *serial, unsigned int length)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(!device->mig);
    return nvml_copy(device->gpu->serial, serial, length);
}

NVML_GET(nvmlDeviceGetBoardId, unsigned int, !device->mig,
         device->gpu->pci_bus << 8 | device->gpu->pci_device)

NVML_GET(nvmlDeviceGetBrand, unsigned int, !device->mig, device->gpu->brand)

NVML_API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int *major, int *minor)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(major && minor);
    *major = (int)device->gpu->capability.major;
    *minor = (int)device->gpu->capability.minor;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t handle, unsigned int *architecture)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(architecture);
    struct sim_version capability = device->gpu->capability;
    *architecture = capability.major == 7   ? (capability.minor >= 5 ? 6u : 5u) /* Turing, Volta */
                    : capability.major == 8 ? (capability.minor == 9 ? 8u : 7u) /* Ada, Ampere */
                    : capability.major == 9 ? 9u                                /* Hopper */
                    : capability.major > 9  ? 10u
                                            : 0xffffffffu;
    return NVML_SUCCESS;
}

static void bus_text(const struct sim_gpu *gpu, char *out, size_t size, const char *format)
{
    snprintf(out, size, format, gpu->pci_domain, gpu->pci_bus, gpu->pci_device);
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_v3_t *pci)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(pci && !device->mig);
    const struct sim_gpu *gpu = device->gpu;
    *pci = (nvmlPciInfo_v3_t){.domain = gpu->pci_domain,
                              .bus = gpu->pci_bus,
                              .device = gpu->pci_device,
                              .pciDeviceId = gpu->pci_device_id,
                              .pciSubSystemId = gpu->pci_subsystem_id};
    bus_text(gpu, pci->busIdLegacy, sizeof(pci->busIdLegacy), "%04X:%02X:%02X.0");
    bus_text(gpu, pci->busId, sizeof(pci->busId), "%08X:%02X:%02X.0");
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t handle, nvmlPciInfo_v2_t *pci)
{
    nvmlPciInfo_v3_t newest;
    nvmlReturn_t result = pci ? nvmlDeviceGetPciInfo_v3(handle, &newest) : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        *pci = (nvmlPciInfo_v2_t){.domain = newest.domain,
                                  .bus = newest.bus,
                                  .device = newest.device,
                                  .pciDeviceId = newest.pciDeviceId,
                                  .pciSubSystemId = newest.pciSubSystemId};
        memcpy(pci->busId, newest.busIdLegacy, sizeof(pci->busId));
    }
    return result;
}

/* Newer headers rename calls of this name to _v3; what still has it knows the first layout. */
NVML_API nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t handle, nvmlPciInfo_v1_t *pci)
{
    nvmlPciInfo_v3_t newest;
    nvmlReturn_t result = pci ? nvmlDeviceGetPciInfo_v3(handle, &newest) : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        *pci = (nvmlPciInfo_v1_t){.domain = newest.domain,
                                  .bus = newest.bus,
                                  .device = newest.device,
                                  .pciDeviceId = newest.pciDeviceId};
        memcpy(pci->busId, newest.busIdLegacy, sizeof(pci->busId));
    }
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t handle, nvmlPciInfoExt_v1_t *pci)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(pci && !device->mig);
    if (pci->version != NVML_VERSION_OF(nvmlPciInfoExt_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const struct sim_gpu *gpu = device->gpu;
    *pci = (nvmlPciInfoExt_v1_t){.version = pci->version,
                                 .domain = gpu->pci_domain,
                                 .bus = gpu->pci_bus,
                                 .device = gpu->pci_device,
                                 .pciDeviceId = gpu->pci_device_id,
                                 .pciSubSystemId = gpu->pci_subsystem_id,
                                 .baseClass = 3,
                                 .subClass = 2};
    bus_text(gpu, pci->busId, sizeof(pci->busId), "%08X:%02X:%02X.0");
    return NVML_SUCCESS;
}
