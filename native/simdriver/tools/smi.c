/* Options, and the way to NVML. */
#include "smi.h"

#include <dlfcn.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "NVIDIA System Management Interface (simulated)\n"
    "\n"
    "nvidia-smi [OPTION1 [ARG1]] [OPTION2 [ARG2]] ...\n"
    "\n"
    "    -h,  --help                 Print usage information and exit.\n"
    "         --version              Print version information and exit.\n"
    "    -L,  --list-gpus            Display a list of GPUs connected to the system.\n"
    "    -f,  --filename=            Log to a file, not to standard output.\n"
    "    -i,  --id=                  Target a specific GPU: its index, UUID or bus id.\n"
    "         --query-gpu=           Information about GPUs: a comma-separated list of\n"
    "                                index, uuid, name, serial, pci.bus_id, minor, count,\n"
    "                                driver_version, cuda_version, compute_cap, timestamp,\n"
    "                                memory.total, memory.used, memory.free, memory.reserved,\n"
    "                                utilization.gpu, utilization.memory, temperature.gpu,\n"
    "                                power.draw, power.limit, clocks.sm, clocks.mem,\n"
    "                                mig.mode.current, mig.mode.pending.\n"
    "         --query-compute-apps=  Information about processes: pid, process_name,\n"
    "                                used_memory, gpu_uuid, gpu_name, gpu_bus_id.\n"
    "         --format=              csv, with noheader and nounits after commas.\n";

struct function {
    const char *name;
    size_t offset;
};

#define FUNCTION(member, name)                                                                              \
    {                                                                                                       \
        name, offsetof(struct smi_nvml, member)                                                             \
    }

static const struct function functions[] = {
    FUNCTION(init, "nvmlInit_v2"),
    FUNCTION(shutdown, "nvmlShutdown"),
    FUNCTION(error, "nvmlErrorString"),
    FUNCTION(driver_version, "nvmlSystemGetDriverVersion"),
    FUNCTION(cuda_version, "nvmlSystemGetCudaDriverVersion_v2"),
    FUNCTION(process_name, "nvmlSystemGetProcessName"),
    FUNCTION(count, "nvmlDeviceGetCount_v2"),
    FUNCTION(by_index, "nvmlDeviceGetHandleByIndex_v2"),
    FUNCTION(by_uuid, "nvmlDeviceGetHandleByUUID"),
    FUNCTION(by_bus_id, "nvmlDeviceGetHandleByPciBusId_v2"),
    FUNCTION(mig_mode, "nvmlDeviceGetMigMode"),
    FUNCTION(mig_device, "nvmlDeviceGetMigDeviceHandleByIndex"),
    FUNCTION(attributes, "nvmlDeviceGetAttributes_v2"),
    FUNCTION(pci, "nvmlDeviceGetPciInfo_v3"),
    FUNCTION(capability, "nvmlDeviceGetCudaComputeCapability"),
    FUNCTION(memory, "nvmlDeviceGetMemoryInfo_v2"),
    FUNCTION(utilization, "nvmlDeviceGetUtilizationRates"),
    FUNCTION(temperature, "nvmlDeviceGetTemperature"),
    FUNCTION(clock, "nvmlDeviceGetClockInfo"),
    FUNCTION(processes, "nvmlDeviceGetComputeRunningProcesses_v3"),
    FUNCTION(uuid, "nvmlDeviceGetUUID"),
    FUNCTION(name, "nvmlDeviceGetName"),
    FUNCTION(serial, "nvmlDeviceGetSerial"),
    FUNCTION(index, "nvmlDeviceGetIndex"),
    FUNCTION(minor, "nvmlDeviceGetMinorNumber"),
    FUNCTION(power, "nvmlDeviceGetPowerUsage"),
    FUNCTION(power_limit, "nvmlDeviceGetEnforcedPowerLimit"),
    FUNCTION(gpu_instance, "nvmlDeviceGetGpuInstanceId"),
    FUNCTION(compute_instance, "nvmlDeviceGetComputeInstanceId"),
};

static int load(struct smi_nvml *nvml)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fputs("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the "
              "NVIDIA "
              "Display Driver is properly installed and present in your system.\n",
              stderr);
        return SMI_NO_LIBRARY;
    }
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *address = dlsym(library, functions[i].name);
        if (!address) {
            fprintf(stderr, "Function Not Found: %s\n", functions[i].name);
            return SMI_NO_FUNCTION;
        }
        memcpy((char *)nvml + functions[i].offset, &address, sizeof(address));
    }
    return 0;
}

int smi_fail(const struct smi_nvml *nvml, nvmlReturn_t result)
{
    switch (result) {
    case NVML_ERROR_DRIVER_NOT_LOADED:
        puts("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that "
             "the "
             "latest NVIDIA driver is installed and running.");
        return SMI_NO_DRIVER;
    case NVML_ERROR_NOT_FOUND:
        puts("No devices were found");
        return SMI_NOT_FOUND;
    default:
        printf("Failed: %s\n", nvml->error(result));
        return result == NVML_ERROR_INVALID_ARGUMENT ? SMI_BAD_ARGUMENT : SMI_OTHER;
    }
}

static nvmlReturn_t find(const struct smi_nvml *nvml, const char *id, nvmlDevice_t *out)
{
    char *end;
    unsigned long index = strtoul(id, &end, 10);
    if (id[0] >= '0' && id[0] <= '9' && !*end)
        return nvml->by_index((unsigned int)index, out) ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
    if (strncmp(id, "GPU-", 4) == 0)
        return nvml->by_uuid(id, out);
    return nvml->by_bus_id(id, out);
}

static int bad_argument(void)
{
    fputs("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n", stderr);
    return SMI_BAD_ARGUMENT;
}

enum { QUERY_GPU = 256, QUERY_APPS, FORMAT, VERSION };

struct options {
    bool list, version;
    bool of_apps;
    char *query, *format, *id, *file;
};

static int parse(int argc, char **argv, struct options *options)
{
    static const struct option known[] = {
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, VERSION},
        {"list-gpus", no_argument, NULL, 'L'},
        {"filename", required_argument, NULL, 'f'},
        {"id", required_argument, NULL, 'i'},
        {"query-gpu", required_argument, NULL, QUERY_GPU},
        {"query-compute-apps", required_argument, NULL, QUERY_APPS},
        {"format", required_argument, NULL, FORMAT},
        {NULL, 0, NULL, 0},
    };
    for (int c; (c = getopt_long(argc, argv, "hLf:i:", known, NULL)) != -1;) {
        switch (c) {
        case 'h':
            fputs(usage, stdout);
            exit(0);
        case 'L':
            options->list = true;
            break;
        case VERSION:
            options->version = true;
            break;
        case 'f':
            options->file = optarg;
            break;
        case 'i':
            options->id = optarg;
            break;
        case FORMAT:
            options->format = optarg;
            break;
        case QUERY_GPU:
        case QUERY_APPS:
            if (options->query)
                return bad_argument();
            options->query = optarg;
            options->of_apps = c == QUERY_APPS;
            break;
        default:
            return bad_argument();
        }
    }
    if (optind != argc || !options->query != !options->format || (options->list && options->query))
        return bad_argument();
    return 0;
}

static int print_version(const struct smi_nvml *nvml)
{
    char driver[80];
    int cuda;
    nvmlReturn_t result = nvml->driver_version(driver, sizeof(driver));
    if (result == NVML_SUCCESS)
        result = nvml->cuda_version(&cuda);
    if (result != NVML_SUCCESS)
        return smi_fail(nvml, result);
    printf("NVIDIA-SMI version  : %s (simulated)\nNVML version        : %s\nDRIVER version      : %s\n"
           "CUDA Version        : %d.%d\n",
           driver, driver, driver, cuda / 1000, cuda % 1000 / 10);
    return 0;
}

int main(int argc, char **argv)
{
    struct smi_nvml nvml;
    struct options options = {0};
    nvmlDevice_t only = NULL;
    int code = parse(argc, argv, &options);
    if (code == 0 && options.file && freopen(options.file, "w", stdout) == NULL) {
        perror(options.file);
        return SMI_BAD_ARGUMENT;
    }
    if (code == 0)
        code = load(&nvml);
    if (code != 0)
        return code;
    nvmlReturn_t result = nvml.init();
    if (result == NVML_SUCCESS && options.id)
        result = find(&nvml, options.id, &only);
    if (result != NVML_SUCCESS)
        return smi_fail(&nvml, result);
    if (options.version)
        code = print_version(&nvml);
    else if (options.list)
        code = smi_list(&nvml, only);
    else if (options.query)
        code = smi_query(&nvml, only, options.of_apps, options.query, options.format);
    else
        code = smi_table(&nvml, only);
    nvml.shutdown();
    return fflush(stdout) == 0 ? code : SMI_OTHER;
}
