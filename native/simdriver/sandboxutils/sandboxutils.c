/* libnvidia-sandboxutils.so.1: nvidia-ctk loads it, asks it for the files of a GPU, and asks NVML instead where it
 * cannot be initialised. It must have these symbols: nvidia-ctk binds them when it calls them. */
enum { UNINITIALIZED = 1, NOT_SUPPORTED = 2 };

#define API __attribute__((visibility("default")))

API int nvSandboxUtilsInit(const void *root)
{
    (void)root;
    return NOT_SUPPORTED;
}

API int nvSandboxUtilsShutdown(void)
{
    return UNINITIALIZED;
}

API int nvSandboxUtilsGetDriverVersion(char *version, unsigned int length)
{
    (void)version, (void)length;
    return UNINITIALIZED;
}

API int nvSandboxUtilsGetGpuResource(void *request)
{
    (void)request;
    return UNINITIALIZED;
}

API int nvSandboxUtilsGetFileContent(const char *path, char *content, unsigned int *size)
{
    (void)path, (void)content, (void)size;
    return UNINITIALIZED;
}

API const char *nvSandboxUtilsErrorString(int result)
{
    return result == NOT_SUPPORTED ? "Not supported by a simulated driver" : "Not initialized";
}
