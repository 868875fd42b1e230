#include "faults.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FAULTS "/proc/driver/nvidia/sim/faults"

enum { MOST = 65536, UUID_SIZE = 96, NAME_SIZE = 32 };

struct fault {
    char uuid[UUID_SIZE], name[NAME_SIZE];
    unsigned long long value;
};

/* The file as a string in `text`; empty where there is none. */
static void read_faults(char text[MOST])
{
    char path[SIM_MAX_PATH];
    size_t length = 0;
    int fd = -1;

    if (sim_root_join(&nvml_library()->root, FAULTS, path))
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    while (fd >= 0 && length < MOST - 1) {
        ssize_t got = read(fd, text + length, MOST - 1 - length);
        if (got <= 0)
            break;
        length += (size_t)got;
    }
    if (fd >= 0)
        close(fd);
    text[length] = '\0';
}

/* The fault of the line at `*at`, which then is the next one; false at the end. */
static bool next_fault(char **at, struct fault *fault)
{
    while (**at) {
        char *line = *at, *end = strchr(line, '\n');
        *at = end ? end + 1 : line + strlen(line);
        if (end)
            *end = '\0';
        if (sscanf(line, "%95s %31s %llu", fault->uuid, fault->name, &fault->value) == 3)
            return true;
    }
    return false;
}

unsigned long long nvml_fault(const struct nvml_device *device, const char *name)
{
    char text[MOST], *at = text;
    struct fault fault;
    unsigned long long value = 0;

    read_faults(text);
    while (next_fault(&at, &fault))
        if (strcmp(fault.name, name) == 0 && strcmp(fault.uuid, device->gpu->uuid) == 0)
            value = fault.value;
    return value;
}

static const struct nvml_device *gpu_named(const char *uuid)
{
    struct nvml_library *library = nvml_library();

    for (uint32_t i = 0; i < library->gpu_count; i++)
        if (strcmp(uuid, library->gpus[i].device.gpu->uuid) == 0)
            return &library->gpus[i].device;
    return NULL;
}

uint32_t nvml_events(uint32_t seen, const struct nvml_device **device, unsigned long long *xid)
{
    char text[MOST], *at = text;
    struct fault fault;
    uint32_t count = 0;

    read_faults(text);
    while (next_fault(&at, &fault)) {
        const struct nvml_device *found = strcmp(fault.name, "xid") == 0 ? gpu_named(fault.uuid) : NULL;
        if (found && count++ == seen) {
            *device = found;
            *xid = fault.value;
        }
    }
    return count;
}
