/* The part of NVML's binary interface that the shim looks into, from the public documentation. */
#ifndef NVC_VGPU_NVML_ABI_H
#define NVC_VGPU_NVML_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
};

enum { NVML_UUID_ROOM = 96 };

#define NVML_NO_INSTANCE 0xffffffffu

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_v2_t; /* and version 3 */

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

_Static_assert(sizeof(nvmlMemory_v2_t) == 40, "NVML layout");
_Static_assert(sizeof(nvmlProcessInfo_v1_t) == 16, "NVML layout");
_Static_assert(sizeof(nvmlProcessInfo_v2_t) == 24, "NVML layout");
_Static_assert(sizeof(nvmlProcessDetail_v1_t) == 32, "NVML layout");
_Static_assert(sizeof(nvmlProcessDetailList_t) == 24, "NVML layout");

#define NVML_API __attribute__((visibility("default")))

#endif
