/* The simulated nvidia-smi: it asks libnvidia-ml.so.1, as the real one does, and knows nothing else. */
#pragma once

#include "abi/nvml.h"

#include <stdbool.h>
#include <stddef.h>

/* Exit codes of nvidia-smi(1). */
enum {
    SMI_BAD_ARGUMENT = 2,
    SMI_NOT_FOUND = 6,
    SMI_NO_DRIVER = 9,
    SMI_NO_LIBRARY = 12,
    SMI_NO_FUNCTION = 13,
    SMI_OTHER = 255,
};

enum { SMI_PROCESSES = 1024 };

/* What it asks, and the name of the function for that. */
#define SMI_FUNCTIONS(ASK)                                                                                  \
    ASK(init, nvmlInit_v2, (void))                                                                          \
    ASK(shutdown, nvmlShutdown, (void))                                                                     \
    ASK(driver_version, nvmlSystemGetDriverVersion, (char *, unsigned int))                                 \
    ASK(cuda_version, nvmlSystemGetCudaDriverVersion_v2, (int *))                                           \
    ASK(process_name, nvmlSystemGetProcessName, (unsigned int, char *, unsigned int))                       \
    ASK(count, nvmlDeviceGetCount_v2, (unsigned int *))                                                     \
    ASK(by_index, nvmlDeviceGetHandleByIndex_v2, (unsigned int, nvmlDevice_t *))                            \
    ASK(by_uuid, nvmlDeviceGetHandleByUUID, (const char *, nvmlDevice_t *))                                 \
    ASK(mig_device, nvmlDeviceGetMigDeviceHandleByIndex, (nvmlDevice_t, unsigned int, nvmlDevice_t *))      \
    ASK(pci, nvmlDeviceGetPciInfo_v3, (nvmlDevice_t, nvmlPciInfo_v3_t *))                                   \
    ASK(capability, nvmlDeviceGetCudaComputeCapability, (nvmlDevice_t, int *, int *))                       \
    ASK(memory, nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t, nvmlMemory_v2_t *))                              \
    ASK(utilization, nvmlDeviceGetUtilizationRates, (nvmlDevice_t, nvmlUtilization_t *))                    \
    ASK(clock, nvmlDeviceGetClockInfo, (nvmlDevice_t, unsigned int, unsigned int *))                        \
    ASK(processes, nvmlDeviceGetComputeRunningProcesses_v3,                                                 \
        (nvmlDevice_t, unsigned int *, nvmlProcessInfo_v2_t *))                                             \
    ASK(uuid, nvmlDeviceGetUUID, (nvmlDevice_t, char *, unsigned int))                                      \
    ASK(name, nvmlDeviceGetName, (nvmlDevice_t, char *, unsigned int))                                      \
    ASK(serial, nvmlDeviceGetSerial, (nvmlDevice_t, char *, unsigned int))                                  \
    ASK(index, nvmlDeviceGetIndex, (nvmlDevice_t, unsigned int *))                                          \
    ASK(minor, nvmlDeviceGetMinorNumber, (nvmlDevice_t, unsigned int *))                                    \
    ASK(power, nvmlDeviceGetPowerUsage, (nvmlDevice_t, unsigned int *))                                     \
    ASK(power_limit, nvmlDeviceGetEnforcedPowerLimit, (nvmlDevice_t, unsigned int *))

struct smi_nvml {
#define ASK(member, name, parameters) nvmlReturn_t(*member) parameters;
    SMI_FUNCTIONS(ASK)
#undef ASK
    const char *(*error)(nvmlReturn_t);
};

extern struct smi_nvml nvml;

/* Prints `result` as nvidia-smi does and returns the exit code for it. */
int smi_fail(nvmlReturn_t result);

/* Calls `print` for `only`, or for all GPUs if that is NULL; 0, or the exit code of the first failure. */
int smi_each(nvmlDevice_t only, int (*print)(nvmlDevice_t));

/* The table that nvidia-smi prints without options. */
int smi_table(nvmlDevice_t only);

/* `-L`. */
int smi_list(nvmlDevice_t only);

/* `--query-gpu` and `--query-compute-apps`: `fields` and `format` as on the command line. */
int smi_query(nvmlDevice_t only, bool of_apps, char *fields, char *format);
