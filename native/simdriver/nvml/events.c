/* Event sets. A simulated GPU has the events that its root's file of faults names: see faults.h. */
#include "faults.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

enum { XID = 0x8, LOOK_AGAIN_MS = 50 };

struct nvml_event_set {
    uint32_t registered;
    uint32_t seen; /* events that were told, or were there before */
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
    if (!set->registered++) {
        const struct nvml_device *before;
        unsigned long long xid;
        set->seen = nvml_events(UINT32_MAX, &before, &xid);
    }
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    if (!nvml_library())
        return NVML_ERROR_UNINITIALIZED;
    NVML_ARGUMENT(set && data);
    for (unsigned int waited = 0;; waited += LOOK_AGAIN_MS) {
        const struct nvml_device *device = NULL;
        unsigned long long xid = 0;
        nvml_events(set->seen, &device, &xid);
        if (set->registered && device) {
            set->seen++;
            *data = (nvmlEventData_t){(nvmlDevice_t)device, XID, xid, UINT32_MAX, UINT32_MAX};
            return NVML_SUCCESS;
        }
        if (waited >= timeout_ms)
            break;
        struct timespec left = {.tv_nsec = LOOK_AGAIN_MS * 1000000};
        while (nanosleep(&left, &left) != 0 && errno == EINTR)
            ;
    }
    return NVML_ERROR_TIMEOUT;
}

NVML_API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    return nvmlEventSetWait_v2(set, data, timeout_ms);
}
