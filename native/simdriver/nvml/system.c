/* Errors and facts about the driver as a whole. */
#include "library.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

NVML_API const char *nvmlErrorString(nvmlReturn_t result)
{
    switch ((int)result) {
    case NVML_SUCCESS:
        return "Success";
    case NVML_ERROR_UNINITIALIZED:
        return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported";
    case NVML_ERROR_NO_PERMISSION:
        return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND:
        return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case NVML_ERROR_FUNCTION_NOT_FOUND:
        return "Function Not Found";
    case NVML_ERROR_TIMEOUT:
        return "Timeout";
    case NVML_ERROR_MEMORY:
        return "Insufficient Memory";
    case NVML_ERROR_NO_DATA:
        return "No data";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
        return "The provided version is invalid/unsupported";
    default:
        return "Unknown Error";
    }
}

NVML_API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    const struct nvml_library *library = nvml_library();
    if (!library)
        return NVML_ERROR_UNINITIALIZED;
    return nvml_copy(library->root.description.driver_version, version, length);
}

NVML_API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    const struct nvml_library *library = nvml_library();
    char text[48];
    if (!library)
        return NVML_ERROR_UNINITIALIZED;
    /* The major of the CUDA version goes before the driver version. */
    snprintf(text, sizeof(text), "%u.%s", library->root.description.cuda_version.major,
             library->root.description.driver_version);
    return nvml_copy(text, version, length);
}

NVML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    const struct nvml_library *library = nvml_library();
    if (!library)
        return NVML_ERROR_UNINITIALIZED;
    NVML_ARGUMENT(version);
    *version = (int)(library->root.description.cuda_version.major * 1000 +
                     library->root.description.cuda_version.minor * 10);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

NVML_API nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    char path[32], text[256];
    if (!nvml_library())
        return NVML_ERROR_UNINITIALIZED;
    NVML_ARGUMENT(name && length);
    snprintf(path, sizeof(path), "/proc/%u/cmdline", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NVML_ERROR_NOT_FOUND;
    ssize_t size = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (size < 0)
        return NVML_ERROR_UNKNOWN;
    text[size] = '\0'; /* the first argument ends at the first zero byte */
    snprintf(name, length, "%s", text);
    return NVML_SUCCESS;
}
