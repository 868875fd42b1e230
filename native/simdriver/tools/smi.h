/* The simulated nvidia-smi: it asks libnvidia-ml.so.1, as the real one does, and knows nothing else. */
#ifndef NVC_SIM_SMI_H
#define NVC_SIM_SMI_H

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

typedef nvmlReturn_t (*smi_text_call)(nvmlDevice_t, char *, unsigned int);
typedef nvmlReturn_t (*smi_number_call)(nvmlDevice_t, unsigned int *);

/* NVML's functions, resolved once. */
struct smi_nvml {
    nvmlReturn_t (*init)(void);
    nvmlReturn_t (*shutdown)(void);
    const char *(*error)(nvmlReturn_t);
    nvmlReturn_t (*driver_version)(char *, unsigned int);
    nvmlReturn_t (*cuda_version)(int *);
    nvmlReturn_t (*process_name)(unsigned int, char *, unsigned int);
    nvmlReturn_t (*count)(unsigned int *);
    nvmlReturn_t (*by_index)(unsigned int, nvmlDevice_t *);
    nvmlReturn_t (*by_uuid)(const char *, nvmlDevice_t *);
    nvmlReturn_t (*by_bus_id)(const char *, nvmlDevice_t *);
    nvmlReturn_t (*mig_mode)(nvmlDevice_t, unsigned int *, unsigned int *);
    nvmlReturn_t (*mig_device)(nvmlDevice_t, unsigned int, nvmlDevice_t *);
    nvmlReturn_t (*attributes)(nvmlDevice_t, nvmlDeviceAttributes_t *);
    nvmlReturn_t (*pci)(nvmlDevice_t, nvmlPciInfo_v3_t *);
    nvmlReturn_t (*capability)(nvmlDevice_t, int *, int *);
    nvmlReturn_t (*memory)(nvmlDevice_t, nvmlMemory_v2_t *);
    nvmlReturn_t (*utilization)(nvmlDevice_t, nvmlUtilization_t *);
    nvmlReturn_t (*temperature)(nvmlDevice_t, unsigned int, unsigned int *);
    nvmlReturn_t (*clock)(nvmlDevice_t, unsigned int, unsigned int *);
    nvmlReturn_t (*processes)(nvmlDevice_t, unsigned int *, nvmlProcessInfo_v2_t *);
    smi_text_call uuid, name, serial;
    smi_number_call index, minor, power, power_limit, gpu_instance, compute_instance;
};

/* Prints `result` as nvidia-smi does and returns the exit code for it. */
int smi_fail(const struct smi_nvml *nvml, nvmlReturn_t result);

/* The table that nvidia-smi prints without options. `only` is a GPU, or NULL for all. */
int smi_table(const struct smi_nvml *nvml, nvmlDevice_t only);

/* `-L`. */
int smi_list(const struct smi_nvml *nvml, nvmlDevice_t only);

/* `--query-gpu` and `--query-compute-apps`: `fields` and `format` as on the command line. */
int smi_query(const struct smi_nvml *nvml, nvmlDevice_t only, bool of_apps, char *fields, char *format);

#endif
