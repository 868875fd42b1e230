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
    "    -L,  --list-gpus            Display a list of GPUs connected to the system.\n"
    "    -f,  --filename=            Log to a file, not to standard output.\n"
    "    -i,  --id=                  Target a specific GPU: its index or UUID.\n"
    "         --query-gpu=           Information about GPUs: a comma-separated list of\n"
    "                                index, uuid, name, serial, pci.bus_id, minor,\n"
    "                                driver_version, compute_cap, memory.total, memory.used,\n"
    "                                memory.free, memory.reserved, utilization.gpu,\n"
    "                                power.draw, power.limit, clocks.sm.\n"
    "         --query-compute-apps=  Information about processes: pid, process_name,\n"
    "                                used_memory, gpu_uuid, gpu_bus_id.\n"
    "         --format=              csv, with noheader and nounits after commas.\n";

struct smi_nvml nvml;

static int load(void)
{
    static const struct {
        const char *name;
        size_t offset;
    } functions[] = {
#define ASK(member, name, parameters) {#name, offsetof(struct smi_nvml, member)},
        SMI_FUNCTIONS(ASK)
#undef ASK
            {"nvmlErrorString", offsetof(struct smi_nvml, error)},
    };
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fputs("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the "
              "NVIDIA Display Driver is properly installed and present in your system.\n",
              stderr);
        return SMI_NO_LIBRARY;
    }
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *address = dlsym(library, functions[i].name);
        if (!address) {
            fprintf(stderr, "Function Not Found: %s\n", functions[i].name);
            return SMI_NO_FUNCTION;
        }
        memcpy((char *)&nvml + functions[i].offset, &address, sizeof(address));
    }
    return 0;
}

int smi_fail(nvmlReturn_t result)
{
    switch (result) {
    case NVML_ERROR_DRIVER_NOT_LOADED:
        puts("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that "
             "the latest NVIDIA driver is installed and running.");
        return SMI_NO_DRIVER;
    case NVML_ERROR_NOT_FOUND:
        puts("No devices were found");
        return SMI_NOT_FOUND;
    default:
        printf("Failed: %s\n", nvml.error(result));
        return result == NVML_ERROR_INVALID_ARGUMENT ? SMI_BAD_ARGUMENT : SMI_OTHER;
    }
}

int smi_each(nvmlDevice_t only, int (*print)(nvmlDevice_t))
{
    unsigned int count = 0;
    int code = 0;
    nvmlReturn_t result = nvml.count(&count);
    if (result != NVML_SUCCESS || count == 0)
        return smi_fail(result == NVML_SUCCESS ? NVML_ERROR_NOT_FOUND : result);
    for (unsigned int i = 0; i < (only ? 1 : count) && code == 0; i++) {
        nvmlDevice_t gpu = only;
        result = only ? NVML_SUCCESS : nvml.by_index(i, &gpu);
        code = result == NVML_SUCCESS ? print(gpu) : smi_fail(result);
    }
    return code;
}

static nvmlReturn_t find(const char *id, nvmlDevice_t *out)
{
    char *end;
    unsigned long index = strtoul(id, &end, 10);
    if (id[0] >= '0' && id[0] <= '9' && !*end)
        return nvml.by_index((unsigned int)index, out) ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
    return nvml.by_uuid(id, out);
}

static int bad_argument(void)
{
    fputs("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n", stderr);
    return SMI_BAD_ARGUMENT;
}

struct options {
    bool list;
    char *of_gpus, *of_apps, *format, *id, *file;
};

static int parse(int argc, char **argv, struct options *options)
{
    enum { QUERY_GPU = 256, QUERY_APPS, FORMAT };
    static const struct option known[] = {
        {"help", no_argument, NULL, 'h'},
        {"list-gpus", no_argument, NULL, 'L'},
        {"filename", required_argument, NULL, 'f'},
        {"id", required_argument, NULL, 'i'},
        {"query-gpu", required_argument, NULL, QUERY_GPU},
        {"query-compute-apps", required_argument, NULL, QUERY_APPS},
        {"format", required_argument, NULL, FORMAT},
        {NULL, 0, NULL, 0},
    };
    for (int c; (c = getopt_long(argc, argv, "hLf:i:", known, NULL)) != -1;) {
        if (c == 'h') {
            fputs(usage, stdout);
            exit(0);
        }
        char **place = c == 'f'          ? &options->file
                       : c == 'i'        ? &options->id
                       : c == QUERY_GPU  ? &options->of_gpus
                       : c == QUERY_APPS ? &options->of_apps
                       : c == FORMAT     ? &options->format
                                         : NULL;
        if (place)
            *place = optarg;
        else if (c != 'L')
            return bad_argument();
        options->list |= c == 'L';
    }
    bool query = options->of_gpus || options->of_apps;
    bool wrong = options->of_gpus && options->of_apps;
    return optind != argc || query != !!options->format || (options->list && query) || wrong ? bad_argument()
                                                                                             : 0;
}

static int show(const struct options *options, nvmlDevice_t only)
{
    if (options->list)
        return smi_list(only);
    if (options->format)
        return smi_query(only, options->of_apps, options->of_apps ? options->of_apps : options->of_gpus,
                         options->format);
    return smi_table(only);
}

int main(int argc, char **argv)
{
    struct options options = {0};
    nvmlDevice_t only = NULL;
    int code = parse(argc, argv, &options);
    if (code == 0 && options.file && freopen(options.file, "w", stdout) == NULL) {
        perror(options.file);
        return SMI_BAD_ARGUMENT;
    }
    if (code == 0)
        code = load();
    if (code != 0)
        return code;
    nvmlReturn_t result = nvml.init();
    if (result == NVML_SUCCESS && options.id)
        result = find(options.id, &only);
    if (result != NVML_SUCCESS)
        return smi_fail(result);
    code = show(&options, only);
    nvml.shutdown();
    return fflush(stdout) == 0 ? code : SMI_OTHER;
}
