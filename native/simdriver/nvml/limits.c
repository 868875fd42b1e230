/* Limits of memory by cgroup. */
#include "library.h"
#include "limit.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What every function here answers before it looks at its arguments: a driver before version 615 lacks it. */
static nvmlReturn_t check(const struct nvml_device *device)
{
    const struct nvml_library *library = nvml_library();
    if (!sim_has_limits(&library->root.description))
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (device->mig || device->gpu->mig_enabled)
        return NVML_ERROR_NOT_SUPPORTED;
    return library->state ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

/* As the kernel asks of whoever administers it. */
static bool is_administrator(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[2] = {{0}};
    return syscall(SYS_capget, &header, sets) == 0 && sets[0].effective & 1u << CAP_SYS_ADMIN;
}

static nvmlReturn_t set(const struct nvml_library *library, uint32_t partition,
                        const nvmlSetMemoryLimits_v1_t *limits)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SIM_LOCK_LEDGER, .l_len = 1};
    char path[SIM_MAX_PATH];
    nvmlReturn_t result = NVML_ERROR_UNKNOWN;
    if (!sim_root_join(&library->root, SIM_STATE_PATH, path))
        return result;
    /* Closed again, though that costs a libcuda in this process its POSIX locks: who administers has none. */
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW);
    if (fd < 0)
        return errno == EACCES ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_UNKNOWN;
    struct sim_state *state = mmap(NULL, sizeof(*state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (state != MAP_FAILED && fcntl(fd, F_OFD_SETLKW, &lock) == 0) {
        int error = sim_limit_set(state, partition, limits->nameSpace, limits->softLimit, limits->hardLimit);
        result = !error ? NVML_SUCCESS : error == ENOENT ? NVML_ERROR_NOT_FOUND : NVML_ERROR_MEMORY;
    }
    if (state != MAP_FAILED)
        munmap(state, sizeof(*state));
    close(fd);
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t handle,
                                                   const nvmlSetMemoryLimits_v1_t *limits)
{
    NVML_DEVICE(device, handle);
    nvmlReturn_t result = check(device);
    if (result != NVML_SUCCESS)
        return result;
    NVML_ARGUMENT(limits && limits->nameSpace && limits->softLimit <= limits->hardLimit);
    return is_administrator() ? set(nvml_library(), device->partition, limits) : NVML_ERROR_NO_PERMISSION;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t handle, nvmlGetMemoryLimits_v1_t *limits)
{
    NVML_DEVICE(device, handle);
    const struct nvml_library *library = nvml_library();
    uint64_t cgroup;
    nvmlReturn_t result = check(device);
    if (result != NVML_SUCCESS)
        return result;
    NVML_ARGUMENT(limits && limits->nameSpace);
    const struct sim_limit *limit =
        sim_limit_get(library->state, device->partition, limits->nameSpace, &cgroup);
    if (!cgroup)
        return NVML_ERROR_NOT_FOUND;
    limits->softLimit = limit ? atomic_load(&limit->soft) : 0;
    limits->hardLimit = limit ? atomic_load(&limit->hard) : SIM_NO_LIMIT;
    limits->currentUsed =
        sim_cgroup_bytes(library->state, library->state_fd, SIM_SLOTS, cgroup, device->partition);
    return NVML_SUCCESS;
}
