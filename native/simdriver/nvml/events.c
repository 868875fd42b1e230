/* Event sets. A simulated GPU never has an event; waiting for one takes its time all the same. */
#include "library.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

struct nvml_event_set {
    uint32_t registered;
};

NVML_API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    if (!nvml_library())
        return NVML_ERROR_UNINITIALIZED;
    NVML_ARGUMENT(set);
    *set = calloc(1, sizeof(**set));
    return *set ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

NVML_API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    NVML_ARGUMENT(set);
    free(set);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t handle, unsigned long long *types)
{
    NVML_DEVICE(device, handle);
    NVML_ARGUMENT(types && !device->mig);
    *types = 0x8 | 0x1 | 0x2; /* critical Xid, single and double bit ECC errors */
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t handle, unsigned long long types,
                                               nvmlEventSet_t set)
{
    unsigned long long supported;
    nvmlReturn_t result = nvmlDeviceGetSupportedEventTypes(handle, &supported);
    if (result != NVML_SUCCESS)
        return result;
    NVML_ARGUMENT(set);
    if (types & ~supported)
        return NVML_ERROR_NOT_SUPPORTED;
    set->registered++;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    if (!nvml_library())
        return NVML_ERROR_UNINITIALIZED;
    NVML_ARGUMENT(set && data);
    struct timespec left = {.tv_sec = timeout_ms / 1000, .tv_nsec = (long)(timeout_ms % 1000) * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
    return NVML_ERROR_TIMEOUT;
}

NVML_API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    return nvmlEventSetWait_v2(set, data, timeout_ms);
}
