/* The part of NVML's binary interface that the simulated library offers and the shim looks into: numbers and layouts, from
 * its public documentation. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_NO_DATA = 21,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;

typedef struct nvml_device *nvmlDevice_t;
typedef struct nvml_event_set *nvmlEventSet_t;

#define NVML_VERSION_OF(type, number) ((unsigned int)(sizeof(type) | ((unsigned int)(number) << 24)))
#define NVML_NO_INSTANCE 0xffffffffu

enum { NVML_UUID_ROOM = 96 };

typedef struct {
    char busId[16];
    unsigned int domain, bus, device, pciDeviceId;
} nvmlPciInfo_v1_t;

typedef struct {
    char busId[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    unsigned int reserved[4];
} nvmlPciInfo_v2_t;

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_v3_t;

typedef struct {
    unsigned int version;
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId, baseClass, subClass;
    char busId[32];
} nvmlPciInfoExt_v1_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlBAR1Memory_t;

typedef struct {
    unsigned int version;
    unsigned char clusterUuid[16];
    nvmlReturn_t status;
    unsigned int cliqueId;
    unsigned char state;
    unsigned int healthMask;
} nvmlGpuFabricInfo_v2_t;

typedef struct {
    const char *nameSpace; /* directory of a cgroup */
    unsigned long long softLimit, hardLimit;
} nvmlSetMemoryLimits_v1_t;

typedef struct {
    const char *nameSpace;
    unsigned long long softLimit, hardLimit, currentUsed;
} nvmlGetMemoryLimits_v1_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_v2_t; /* v3 is the same */

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
    unsigned long long usedGpuCcProtectedMemory;
} nvmlProcessDetail_v1_t;

typedef struct {
    unsigned int version, mode; /* 0: compute, 1: graphics, 2: MPS */
    unsigned int numProcArrayEntries;
    nvmlProcessDetail_v1_t *procArray;
} nvmlProcessDetailList_t;

typedef struct {
    unsigned int pid;
    unsigned long long timeStamp; /* microseconds */
    unsigned int smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;

typedef struct {
    unsigned int gpu, memory;
} nvmlUtilization_t;

typedef struct {
    unsigned int multiprocessorCount;
    unsigned int sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount,
        sharedOfaCount;
    unsigned int gpuInstanceSliceCount, computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

typedef struct {
    unsigned int id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount;
    unsigned int copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
    unsigned long long memorySizeMB;
} nvmlGpuInstanceProfileInfo_t;

typedef struct {
    nvmlDevice_t device;
    unsigned int id, profileId;
    unsigned int start, size; /* memory slices */
} nvmlGpuInstanceInfo_t;

typedef struct {
    unsigned int id, sliceCount, instanceCount, multiprocessorCount;
    unsigned int sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount,
        sharedOfaCount;
} nvmlComputeInstanceProfileInfo_t;

typedef struct {
    nvmlDevice_t device, gpuInstance;
    unsigned int id, profileId;
    unsigned int start, size; /* compute slices */
} nvmlComputeInstanceInfo_t;

typedef struct {
    unsigned int fieldId, scopeId;
    long long timestamp, latencyUsec;
    unsigned int valueType;
    nvmlReturn_t nvmlReturn;
    union {
        double dVal;
        unsigned long long ullVal;
    } value;
} nvmlFieldValue_t;

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

_Static_assert(sizeof(nvmlPciInfo_v1_t) == 32, "NVML layout");
_Static_assert(sizeof(nvmlPciInfo_v2_t) == 52, "NVML layout");
_Static_assert(sizeof(nvmlPciInfo_v3_t) == 68, "NVML layout");
_Static_assert(sizeof(nvmlMemory_v2_t) == 40, "NVML layout");
_Static_assert(sizeof(nvmlSetMemoryLimits_v1_t) == 24, "NVML layout");
_Static_assert(sizeof(nvmlGetMemoryLimits_v1_t) == 32, "NVML layout");
_Static_assert(sizeof(nvmlProcessInfo_v1_t) == 16, "NVML layout");
_Static_assert(sizeof(nvmlProcessInfo_v2_t) == 24, "NVML layout");
_Static_assert(sizeof(nvmlProcessDetail_v1_t) == 32, "NVML layout");
_Static_assert(sizeof(nvmlProcessDetailList_t) == 24, "NVML layout");
_Static_assert(sizeof(nvmlDeviceAttributes_t) == 40, "NVML layout");
_Static_assert(sizeof(nvmlFieldValue_t) == 40, "NVML layout");
_Static_assert(sizeof(nvmlGpuInstanceProfileInfo_t) == 48, "NVML layout");
_Static_assert(sizeof(nvmlGpuInstanceInfo_t) == 24, "NVML layout");
_Static_assert(sizeof(nvmlComputeInstanceProfileInfo_t) == 36, "NVML layout");
_Static_assert(sizeof(nvmlComputeInstanceInfo_t) == 32, "NVML layout");

#define NVML_API __attribute__((visibility("default")))
