/* What nvidia-smi prints for people: the table and the list. */
#include "smi.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define RULE "+-----------------------------------------------------------------------------------------+"

static int print_head(void)
{
    char driver[80], now[64], line[256];
    time_t seconds = time(NULL);
    struct tm local;
    int cuda;
    nvmlReturn_t result = nvml.driver_version(driver, sizeof(driver));
    if (result == NVML_SUCCESS)
        result = nvml.cuda_version(&cuda);
    if (result != NVML_SUCCESS)
        return smi_fail(result);
    localtime_r(&seconds, &local);
    strftime(now, sizeof(now), "%a %b %e %H:%M:%S %Y", &local);
    snprintf(line, sizeof(line), "NVIDIA-SMI %s   Driver Version: %s   CUDA Version: %d.%d", driver, driver,
             cuda / 1000, cuda % 1000 / 10);
    printf("%s\n" RULE "\n| %-87s |\n" RULE "\n", now, line);
    puts("| GPU  Name                                               | Bus-Id           |   GPU-Util |\n"
         "|                                                         |                  Memory-Usage |\n"
         "|=========================================================+===============================|");
    return 0;
}

static int print_gpu(nvmlDevice_t gpu)
{
    unsigned int index = 0;
    char name[96], usage[64];
    nvmlUtilization_t busy = {0, 0};
    nvmlPciInfo_v3_t pci;
    nvmlMemory_v2_t memory = {.version = NVML_VERSION_OF(nvmlMemory_v2_t, 2)};
    nvmlReturn_t result = nvml.index(gpu, &index);
    if (result == NVML_SUCCESS)
        result = nvml.name(gpu, name, sizeof(name));
    if (result == NVML_SUCCESS)
        result = nvml.pci(gpu, &pci);
    if (result == NVML_SUCCESS)
        result = nvml.memory(gpu, &memory);
    if (result != NVML_SUCCESS)
        return smi_fail(result);
    nvml.utilization(gpu, &busy);
    snprintf(usage, sizeof(usage), "%lluMiB / %lluMiB", memory.used >> 20, memory.total >> 20);
    printf("| %3u  %-51s| %-17s| %9u%% |\n", index, name, pci.busId, busy.gpu);
    printf("| %56s| %29s |\n" RULE "\n", "", usage);
    return 0;
}

static int print_processes(nvmlDevice_t gpu)
{
    static nvmlProcessInfo_v2_t infos[SMI_PROCESSES];
    unsigned int count = SMI_PROCESSES, index = 0;
    nvmlReturn_t result = nvml.processes(gpu, &count, infos);
    if (result != NVML_SUCCESS)
        return smi_fail(result);
    nvml.index(gpu, &index);
    for (unsigned int i = 0; i < count; i++) {
        char name[64] = "", gi[16] = "N/A", ci[16] = "N/A";
        nvml.process_name(infos[i].pid, name, sizeof(name));
        if (infos[i].gpuInstanceId != NVML_NO_INSTANCE) {
            snprintf(gi, sizeof(gi), "%u", infos[i].gpuInstanceId);
            snprintf(ci, sizeof(ci), "%u", infos[i].computeInstanceId);
        }
        printf("| %4u %4s %4s %10u      C   %-39.39s %9lluMiB |\n", index, gi, ci, infos[i].pid, name,
               infos[i].usedGpuMemory >> 20);
    }
    return 0;
}

int smi_table(nvmlDevice_t only)
{
    int code = print_head();
    if (code == 0)
        code = smi_each(only, print_gpu);
    if (code != 0)
        return code;
    puts("\n" RULE
         "\n| Processes:                                                                              |\n"
         "|  GPU   GI   CI        PID   Type   Process name                              GPU Memory "
         "|\n" RULE);
    code = smi_each(only, print_processes);
    puts(RULE);
    return code;
}

static int list_gpu(nvmlDevice_t gpu)
{
    unsigned int index = 0;
    char name[160], uuid[96];
    nvmlDevice_t mig;
    nvmlReturn_t result = nvml.index(gpu, &index);
    if (result == NVML_SUCCESS)
        result = nvml.name(gpu, name, sizeof(name));
    if (result == NVML_SUCCESS)
        result = nvml.uuid(gpu, uuid, sizeof(uuid));
    if (result != NVML_SUCCESS)
        return smi_fail(result);
    printf("GPU %u: %s (UUID: %s)\n", index, name, uuid);
    for (unsigned int m = 0; nvml.mig_device(gpu, m, &mig) == NVML_SUCCESS; m++) {
        if (nvml.name(mig, name, sizeof(name)) != NVML_SUCCESS ||
            nvml.uuid(mig, uuid, sizeof(uuid)) != NVML_SUCCESS)
            return SMI_OTHER;
        const char *profile = strstr(name, " MIG ");
        printf("  MIG %-11s Device %2u: (UUID: %s)\n", profile ? profile + 5 : name, m, uuid);
    }
    return 0;
}

int smi_list(nvmlDevice_t only)
{
    return smi_each(only, list_gpu);
}
