/* What nvidia-smi prints for people: the table and the list. */
#include "smi.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MAX_PROCESSES = 1024 };

#define RULE "+-----------------------------------------------------------------------------------------+"

static unsigned long long mib(unsigned long long bytes)
{
    return bytes >> 20;
}

static int print_head(const struct smi_nvml *nvml)
{
    char driver[80], now[64], line[256];
    time_t seconds = time(NULL);
    struct tm local;
    int cuda;
    nvmlReturn_t result = nvml->driver_version(driver, sizeof(driver));
    if (result == NVML_SUCCESS)
        result = nvml->cuda_version(&cuda);
    if (result != NVML_SUCCESS)
        return smi_fail(nvml, result);
    localtime_r(&seconds, &local);
    strftime(now, sizeof(now), "%a %b %e %H:%M:%S %Y", &local);
    snprintf(line, sizeof(line), "NVIDIA-SMI %s   Driver Version: %s   CUDA Version: %d.%d", driver, driver,
             cuda / 1000, cuda % 1000 / 10);
    printf("%s\n" RULE "\n| %-87s |\n" RULE "\n", now, line);
    puts("| GPU  Name                                               | Bus-Id           |   GPU-Util |\n"
         "|      MIG M.      Temp       Pwr:Usage/Cap               | Minor            |            |\n"
         "|                                                         |                  Memory-Usage |\n"
         "|=========================================================+===============================|");
    return 0;
}

static int print_gpu(const struct smi_nvml *nvml, nvmlDevice_t gpu)
{
    unsigned int index = 0, minor = 0, temperature = 0, power = 0, limit = 0, mig = 0, pending = 0;
    char name[96], usage[64], percent[16] = "N/A";
    nvmlUtilization_t busy;
    nvmlPciInfo_v3_t pci;
    nvmlMemory_v2_t memory = {.version = NVML_VERSION_OF(nvmlMemory_v2_t, 2)};
    nvmlReturn_t result = nvml->index(gpu, &index);
    if (result == NVML_SUCCESS)
        result = nvml->name(gpu, name, sizeof(name));
    if (result == NVML_SUCCESS)
        result = nvml->pci(gpu, &pci);
    if (result == NVML_SUCCESS)
        result = nvml->memory(gpu, &memory);
    if (result != NVML_SUCCESS)
        return smi_fail(nvml, result);
    const char *mode = nvml->mig_mode(gpu, &mig, &pending) ? "N/A" : mig ? "Enabled" : "Disabled";
    nvml->minor(gpu, &minor);
    nvml->temperature(gpu, 0, &temperature);
    nvml->power(gpu, &power);
    nvml->power_limit(gpu, &limit);
    if (nvml->utilization(gpu, &busy) == NVML_SUCCESS)
        snprintf(percent, sizeof(percent), "%u%%", busy.gpu);
    snprintf(usage, sizeof(usage), "%lluMiB / %lluMiB", mib(memory.used), mib(memory.total));
    printf("| %3u  %-51s| %-17s| %10s |\n", index, name, pci.busId, percent);
    printf("|      %-10s %4uC %10uW / %4uW               | %-17u|            |\n", mode, temperature,
           power / 1000, limit / 1000, minor);
    printf("| %56s| %29s |\n" RULE "\n", "", usage);
    return 0;
}

/* Calls `print` for the one GPU or for all; 0, or the exit code of the first failure. */
static int for_each(const struct smi_nvml *nvml, nvmlDevice_t only,
                    int (*print)(const struct smi_nvml *, nvmlDevice_t))
{
    unsigned int count = 0;
    int code = 0;
    nvmlReturn_t result = nvml->count(&count);
    if (result != NVML_SUCCESS || count == 0)
        return smi_fail(nvml, result == NVML_SUCCESS ? NVML_ERROR_NOT_FOUND : result);
    for (unsigned int i = 0; i < (only ? 1 : count) && code == 0; i++) {
        nvmlDevice_t gpu = only;
        result = only ? NVML_SUCCESS : nvml->by_index(i, &gpu);
        code = result == NVML_SUCCESS ? print(nvml, gpu) : smi_fail(nvml, result);
    }
    return code;
}

static int print_processes(const struct smi_nvml *nvml, nvmlDevice_t gpu)
{
    static nvmlProcessInfo_v2_t infos[MAX_PROCESSES];
    unsigned int count = MAX_PROCESSES, index = 0;
    nvmlReturn_t result = nvml->processes(gpu, &count, infos);
    if (result != NVML_SUCCESS)
        return smi_fail(nvml, result);
    nvml->index(gpu, &index);
    for (unsigned int i = 0; i < count; i++) {
        char name[64] = "", gi[16] = "N/A", ci[16] = "N/A";
        nvml->process_name(infos[i].pid, name, sizeof(name));
        if (infos[i].gpuInstanceId != NVML_NO_INSTANCE) {
            snprintf(gi, sizeof(gi), "%u", infos[i].gpuInstanceId);
            snprintf(ci, sizeof(ci), "%u", infos[i].computeInstanceId);
        }
        printf("| %4u %4s %4s %10u      C   %-39.39s %9lluMiB |\n", index, gi, ci, infos[i].pid, name,
               mib(infos[i].usedGpuMemory));
    }
    return 0;
}

int smi_table(const struct smi_nvml *nvml, nvmlDevice_t only)
{
    unsigned int count = 0;
    nvmlReturn_t result = nvml->count(&count);
    if (result != NVML_SUCCESS || count == 0)
        return smi_fail(nvml, result == NVML_SUCCESS ? NVML_ERROR_NOT_FOUND : result);
    int code = print_head(nvml);
    if (code == 0)
        code = for_each(nvml, only, print_gpu);
    if (code != 0)
        return code;
    puts("\n" RULE
         "\n| Processes:                                                                              |\n"
         "|  GPU   GI   CI        PID   Type   Process name                              GPU Memory "
         "|\n" RULE);
    code = for_each(nvml, only, print_processes);
    puts(RULE);
    return code;
}

static int list_gpu(const struct smi_nvml *nvml, nvmlDevice_t gpu)
{
    unsigned int index = 0;
    char name[96], uuid[96];
    nvmlDevice_t mig;
    nvmlReturn_t result = nvml->index(gpu, &index);
    if (result == NVML_SUCCESS)
        result = nvml->name(gpu, name, sizeof(name));
    if (result == NVML_SUCCESS)
        result = nvml->uuid(gpu, uuid, sizeof(uuid));
    if (result != NVML_SUCCESS)
        return smi_fail(nvml, result);
    printf("GPU %u: %s (UUID: %s)\n", index, name, uuid);
    for (unsigned int m = 0; nvml->mig_device(gpu, m, &mig) == NVML_SUCCESS; m++) {
        char mig_name[160];
        if (nvml->name(mig, mig_name, sizeof(mig_name)) != NVML_SUCCESS ||
            nvml->uuid(mig, uuid, sizeof(uuid)) != NVML_SUCCESS)
            return SMI_OTHER;
        const char *profile = strstr(mig_name, " MIG ");
        printf("  MIG %-11s Device %2u: (UUID: %s)\n", profile ? profile + 5 : mig_name, m, uuid);
    }
    return 0;
}

int smi_list(const struct smi_nvml *nvml, nvmlDevice_t only)
{
    return for_each(nvml, only, list_gpu);
}
