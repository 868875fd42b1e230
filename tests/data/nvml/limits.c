/* An NVML for tests that keeps limits of memory by cgroup in the file `set` beside it, one line for each that it was
 * told: cgroup, device, soft and hard. Where a file `refuse` with a number N is, the Nth and all later ones are
 * refused; with a file `hang` it never answers once it has kept one. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { NO_PERMISSION = 4, NOT_FOUND = 6 };

struct limits {
    const char *cgroup;
    unsigned long long soft, hard, used;
};

EXPORT int nvmlInit_v2(void)
{
    return 0;
}

EXPORT const char *nvmlErrorString(int code)
{
    return code == NO_PERMISSION ? "Insufficient Permissions" : "Not Found";
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    *device = strdup(uuid);
    return 0;
}

static FILE *beside(const char *name, const char *mode)
{
    char path[4096];
    Dl_info own;
    if (!dladdr((void *)(unsigned long)nvmlInit_v2, &own))
        abort();
    const char *end = strrchr(own.dli_fname, '/');
    snprintf(path, sizeof(path), "%.*s/%s", (int)(end - own.dli_fname), own.dli_fname, name);
    return fopen(path, mode);
}

/* How many limits were set; `limits` gets the last of this cgroup and device, if there is one. */
static int look(const char *device, struct limits *limits)
{
    char cgroup[2048], uuid[128];
    unsigned long long soft, hard;
    int count = 0;
    FILE *file = beside("set", "re");
    while (file && fscanf(file, "%2047s %127s %llu %llu", cgroup, uuid, &soft, &hard) == 4) {
        count++;
        if (strcmp(cgroup, limits->cgroup) == 0 && strcmp(uuid, device) == 0) {
            limits->soft = soft;
            limits->hard = hard;
        }
    }
    if (file)
        fclose(file);
    return count;
}

EXPORT int nvmlDeviceGetMemoryLimits_v1(void *device, struct limits *limits)
{
    limits->hard = 0;
    look(device, limits);
    return limits->hard ? 0 : NOT_FOUND;
}

EXPORT int nvmlDeviceSetMemoryLimits_v1(void *device, struct limits *limits)
{
    struct limits ignored = {.cgroup = limits->cgroup};
    int first = 0;
    FILE *file = beside("refuse", "re");
    if (file && fscanf(file, "%d", &first) == 1 && look(device, &ignored) + 1 >= first)
        return NO_PERMISSION;
    file = beside("set", "ae");
    if (!file)
        abort();
    fprintf(file, "%s %s %llu %llu\n", limits->cgroup, (char *)device, limits->soft, limits->hard);
    fclose(file);
    if (beside("hang", "re"))
        for (;;)
            pause();
    return 0;
}
