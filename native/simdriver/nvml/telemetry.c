/* Sensors, clocks, links and modes: plausible constants, so that monitoring tools run. */
#include "faults.h"

#define CONSTANT(name, expression)                                                                          \
    NVML_API nvmlReturn_t name(nvmlDevice_t handle, unsigned int *out)                                      \
    {                                                                                                       \
        NVML_DEVICE(device, handle);                                                                        \
        NVML_ARGUMENT(out);                                                                                 \
        if (device->mig)                                                                                    \
            return NVML_ERROR_NOT_SUPPORTED;                                                                \
        *out = (expression);                                                                                \
        return NVML_SUCCESS;                                                                                \
    }

CONSTANT(nvmlDeviceGetPersistenceMode, 1)
CONSTANT(nvmlDeviceGetPerformanceState, 0)
CONSTANT(nvmlDeviceGetComputeMode, 0)
CONSTANT(nvmlDeviceGetDisplayMode, 0)
CONSTANT(nvmlDeviceGetDisplayActive, 0)
CONSTANT(nvmlDeviceGetMultiGpuBoard, 0)
CONSTANT(nvmlDeviceGetPowerUsage, device->gpu->power_limit / 10)
CONSTANT(nvmlDeviceGetEnforcedPowerLimit, device->gpu->power_limit)
CONSTANT(nvmlDeviceGetPowerManagementLimit, device->gpu->power_limit)
CONSTANT(nvmlDeviceGetPowerManagementDefaultLimit, device->gpu->power_limit)
CONSTANT(nvmlDeviceGetMemoryBusWidth, device->gpu->memory_bus_width)
CONSTANT(nvmlDeviceGetNumGpuCores, device->gpu->multiprocessors * 128)
CONSTANT(nvmlDeviceGetCurrPcieLinkGeneration, 4)
CONSTANT(nvmlDeviceGetMaxPcieLinkGeneration, 4)
CONSTANT(nvmlDeviceGetCurrPcieLinkWidth, 16)
CONSTANT(nvmlDeviceGetMaxPcieLinkWidth, 16)
CONSTANT(nvmlDeviceGetVirtualizationMode, 0)

NVML_API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t handle, unsigned int sensor,
                                               unsigned int *degrees)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(degrees && sensor == 0 && !device->mig);
    *degrees = 30;
    return NVML_SUCCESS;
}

static nvmlReturn_t clock_of(const struct nvml_device *device, unsigned int type, unsigned int *mhz)
{
    NVML_ARGUMENT(mhz && type < 4);
    if (device->mig)
        return NVML_ERROR_NOT_SUPPORTED;
    *mhz = type == 2 ? device->gpu->memory_clock_mhz : device->gpu->clock_mhz;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t handle, unsigned int type, unsigned int *mhz)
{
    NVML_DEVICE(device, handle);
    return clock_of(device, type, mhz);
}

NVML_API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t handle, unsigned int type, unsigned int *mhz)
{
    NVML_DEVICE(device, handle);
    return clock_of(device, type, mhz);
}

NVML_API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t handle, unsigned int *current, unsigned int *pending)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(current && pending && !device->mig);
    *current = *pending = 1;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t handle, unsigned int type,
                                                  unsigned int counter, unsigned long long *errors)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(errors && type < 2 && counter < 2);
    if (nvml_fault(device, "lost"))
        return NVML_ERROR_GPU_IS_LOST;
    *errors = type == 1 ? nvml_fault(device, "ecc") : 0;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t handle, unsigned int *corrected,
                                                unsigned int *uncorrected, unsigned int *pending,
                                                unsigned int *failed)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(corrected && uncorrected && pending && failed && !device->mig);
    unsigned long long fault = nvml_fault(device, "remapping");
    *corrected = *uncorrected = 0;
    *pending = fault == 1;
    *failed = fault == 2;
    return NVML_SUCCESS;
}

static nvmlReturn_t no_counts(const struct nvml_device *device, unsigned long long *value)
{
    NVML_ARGUMENT(value && !device->mig);
    *value = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t handle,
                                                                unsigned long long *reasons)
{
    NVML_DEVICE(device, handle);
    return no_counts(device, reasons);
}

NVML_API nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t handle,
                                                             unsigned long long *reasons)
{
    NVML_DEVICE(device, handle);
    return no_counts(device, reasons);
}

/* No video is coded: 0 percent of a period of a second. */
static nvmlReturn_t idle_engine(const struct nvml_device *device, unsigned int *percent,
                                unsigned int *period_us)
{
    NVML_ARGUMENT(percent && period_us && !device->mig);
    *percent = 0;
    *period_us = 1000000;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t handle, unsigned int *percent,
                                                      unsigned int *us)
{
    NVML_DEVICE(device, handle);
    return idle_engine(device, percent, us);
}

NVML_API nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t handle, unsigned int *percent,
                                                      unsigned int *us)
{
    NVML_DEVICE(device, handle);
    return idle_engine(device, percent, us);
}

NVML_API nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t handle, char *version, unsigned int length)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(!device->mig);
    return nvml_copy("00.00.00.00.00", version, length);
}

/* No GPU has a fabric, unless its file of faults says so. */
NVML_API nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t handle, nvmlGpuFabricInfo_v2_t *info)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(info && !device->mig);
    unsigned char state = (unsigned char)nvml_fault(device, "fabric");
    if (!state)
        return NVML_ERROR_NOT_SUPPORTED;
    if (info->version != NVML_VERSION_OF(nvmlGpuFabricInfo_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    *info = (nvmlGpuFabricInfo_v2_t){.version = info->version,
                                     .state = state,
                                     .status = (nvmlReturn_t)nvml_fault(device, "fabric-status")};
    return NVML_SUCCESS;
}

/* Passively cooled boards have no fan, and no NVLink is simulated. */
NVML_API nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t handle, unsigned int *percent)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(percent);
    return NVML_ERROR_NOT_SUPPORTED;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t handle, unsigned int link, unsigned int *active)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(active && link < 18);
    return NVML_ERROR_NOT_SUPPORTED;
}

NVML_API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t first, nvmlDevice_t second,
                                                          unsigned int *level)
{
    NVML_DEVICE(one, first);
    NVML_DEVICE(two, second);
    NVML_ARGUMENT(level && !one->mig && !two->mig);
    *level = one == two ? 0 : 30; /* internal, else only a host bridge in common */
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t handle, int count, nvmlFieldValue_t *values)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(count > 0 && values);
    for (int i = 0; i < count; i++)
        values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
}
