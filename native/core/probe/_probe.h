#ifndef NVC_PROBE_INTERNAL_H
#define NVC_PROBE_INTERNAL_H
#include "probe.h"

#include <sys/types.h>

/* Notes a failed step in the frame. Returns -1. */
int nvc_probe_fail(struct nvc_probe_frame *frame, uint32_t status, int code, const char *step,
                   const char *text);

/* Takes every right from the calling process. Returns 0, or -1 with the frame filled. */
int nvc_probe_confine(const struct nvc_probe_options *options, pid_t parent, struct nvc_probe_frame *frame);

/* Forbids to make or touch other processes. Returns 0 or -errno. */
int nvc_probe_filter(void);

/* NVML's functions: what they are called here, parameters, names; an older one for drivers that lack the first. Types and
 * numbers are those of nvml.h, which is a stable ABI. */
typedef void *nvml_device;
struct nvml_limits;
enum { NVML_NOT_SUPPORTED = 3, NVML_NOT_FOUND = 6, NVML_FUNCTION_NOT_FOUND = 13 };
#define NVML_FUNCTIONS(ROW)                                                                                 \
    ROW(init, (void), "nvmlInit_v2", "nvmlInit")                                                            \
    ROW(driver_version, (char *, unsigned), "nvmlSystemGetDriverVersion", NULL)                             \
    ROW(cuda_version, (int *), "nvmlSystemGetCudaDriverVersion", "nvmlSystemGetCudaDriverVersion_v2")       \
    ROW(count, (unsigned *), "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount")                                 \
    ROW(handle, (unsigned, nvml_device *), "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex")   \
    ROW(handle_of, (const char *, nvml_device *), "nvmlDeviceGetHandleByUUID", NULL)                        \
    ROW(minor, (nvml_device, unsigned *), "nvmlDeviceGetMinorNumber", NULL)                                 \
    ROW(pci, (nvml_device, void *), "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2")                   \
    ROW(uuid, (nvml_device, char *, unsigned), "nvmlDeviceGetUUID", NULL)                                   \
    ROW(name, (nvml_device, char *, unsigned), "nvmlDeviceGetName", NULL)                                   \
    ROW(brand, (nvml_device, unsigned *), "nvmlDeviceGetBrand", NULL)                                       \
    ROW(capability, (nvml_device, int *, int *), "nvmlDeviceGetCudaComputeCapability", NULL)                \
    ROW(mig_mode, (nvml_device, unsigned *, unsigned *), "nvmlDeviceGetMigMode", NULL)                      \
    ROW(mig_max, (nvml_device, unsigned *), "nvmlDeviceGetMaxMigDeviceCount", NULL)                         \
    ROW(mig_handle, (nvml_device, unsigned, nvml_device *), "nvmlDeviceGetMigDeviceHandleByIndex", NULL)    \
    ROW(gpu_instance, (nvml_device, unsigned *), "nvmlDeviceGetGpuInstanceId", NULL)                        \
    ROW(compute_instance, (nvml_device, unsigned *), "nvmlDeviceGetComputeInstanceId", NULL)                \
    ROW(memory, (nvml_device, void *), "nvmlDeviceGetMemoryInfo", NULL)                                     \
    ROW(fabric, (nvml_device, void *), "nvmlDeviceGetGpuFabricInfoV", NULL)                                 \
    ROW(set_limits, (nvml_device, struct nvml_limits *), "nvmlDeviceSetMemoryLimits_v1", NULL)              \
    ROW(get_limits, (nvml_device, struct nvml_limits *), "nvmlDeviceGetMemoryLimits_v1", NULL)

struct nvml {
    const char *(*error_string)(int);
#define NVML_FIELD(field, parameters, name, older) int(*field) parameters;
    NVML_FUNCTIONS(NVML_FIELD)
};

/* A driver that lacks an optional function answers as NVML does for a missing one. */
#define CALL(function, ...) (nvml->function ? nvml->function(__VA_ARGS__) : NVML_FUNCTION_NOT_FOUND)

/* Loads and begins NVML: the first library of the names that loads. 0, or -1 with the frame filled. */
int nvc_probe_begin(const char *libraries, struct nvc_probe_frame *frame, struct nvml *nvml);
/* Notes a call that failed, for one GPU or, with "", for all. -1 */
int nvc_probe_fail_call(const struct nvml *nvml, struct nvc_probe_frame *frame, const char *call, int code,
                        const char *uuid);

/* Sets options->limits through NVML; `before` gets those that they replace. */
void nvc_probe_set_limits(const struct nvc_probe_options *options, struct nvc_probe_frame *frame,
                          struct nvc_probe_limit *before);

/* Loads NVML and fills the frame and `gpus`, an array of NVC_PROBE_MAX_GPUS. */
void nvc_probe_query(const char *libraries, struct nvc_probe_frame *frame, struct nvc_probe_gpu *gpus);

#endif
