/* Makes the process a client of the MPS server that the slices of its device share, where the device's policy is
 * `concurrent`. The driver reads the variables of MPS when cuInit first runs: so they are set just before, whatever the
 * program had in them. A process that runs already stays what it is. */
#include "slice/account.h"
#include "process/place.h"
#include "process/real.h"
#include "process/system.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

enum { NUMBER_MAX = 32 };

/* What cuInit answers where the driver is not to be asked: CUDA_ERROR_MPS_CONNECTION_FAILED. */
static const CUresult no_server = (CUresult)805;
static CUresult joined = CUDA_SUCCESS;

/* The one device that the slice may use; those with a limit of 0 are hidden. */
static bool find_device(struct vgpu_quota_device *out)
{
    for (int i = 0; i < VGPU_DEVICES && account_device(i, out); i++)
        if (out->memory_limit)
            return true;
    return false;
}

/* A program may ask for fewer multiprocessors than its cap gives, never for more. */
static void set_percentage(uint32_t cores)
{
    char number[NUMBER_MAX];
    const char *own = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    double wish = own ? strtod(own, NULL) : 0;
    if (!cores || (wish > 0 && wish <= cores))
        return;
    snprintf(number, sizeof(number), "%u", cores);
    setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", number, 1);
}

/* Whether a control daemon has put its pipes there: nvcd empties the directory before it starts another one, and what
 * is below the mount of a directory that somebody took away is empty. */
static bool has_pipes(const char *directory)
{
    bool found = false;
    DIR *open = opendir(directory);
    for (struct dirent *entry; open && !found && (entry = readdir(open));)
        found = entry->d_name[0] != '.';
    if (open)
        closedir(open);
    return found;
}

static void join_server(void)
{
    struct vgpu_quota_device device;
    char pipes[PLACE_MAX], limit[NUMBER_MAX];
    if (!find_device(&device) || device.policy != VGPU_POLICY_CONCURRENT)
        return;
    /* A slice that began without a server never has this policy. The driver would go on without MPS, and so without
     * the cap. */
    if (!place_join(VGPU_MPS_DIRECTORY, pipes) || !has_pipes(pipes)) {
        joined = no_server;
        return;
    }
    setenv("CUDA_MPS_PIPE_DIRECTORY", pipes, 1);
    set_percentage(device.cores);
    unsetenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    if (device.memory_limit == VGPU_NO_LIMIT)
        return;
    snprintf(limit, sizeof(limit), "0=%lluM",
             (unsigned long long)((device.memory_limit + (1 << 20) - 1) >> 20));
    setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", limit, 1);
}

/* Threads that come meanwhile wait: the driver must not begin before the variables are set. */
CU_API CUresult cuInit(unsigned int flags)
{
    static struct lock asking;
    static bool asked;
    lock_take(&asking);
    if (!asked)
        join_server();
    asked = true;
    lock_drop(&asking);
    return joined == CUDA_SUCCESS ? REAL(cuInit)(flags) : joined;
}
