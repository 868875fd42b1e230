/* Makes the process a client of the MPS server that the slices of its device share, where the device's policy is
 * `concurrent`. The driver reads the variables of MPS when cuInit first runs: so they are set just before, whatever the
 * program had in them. A process that runs already stays what it is. */
#include "account.h"
#include "place.h"
#include "real.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { NUMBER_MAX = 32 };

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

static void join_server(void)
{
    struct vgpu_quota_device device;
    char pipes[PLACE_MAX], limit[NUMBER_MAX];
    if (!find_device(&device) || device.policy != VGPU_POLICY_CONCURRENT)
        return;
    if (!place_join(VGPU_MPS_DIRECTORY, pipes) || access(pipes, F_OK) != 0)
        return; /* the slice began under another policy */
    setenv("CUDA_MPS_PIPE_DIRECTORY", pipes, 1);
    set_percentage(device.cores);
    unsetenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    if (device.memory_limit == VGPU_NO_LIMIT)
        return;
    snprintf(limit, sizeof(limit), "0=%lluM",
             (unsigned long long)((device.memory_limit + (1 << 20) - 1) >> 20));
    setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", limit, 1);
}

CU_API CUresult cuInit(unsigned int flags)
{
    static _Atomic bool joined; /* a forked child of one that was not yet, too */
    if (!atomic_exchange(&joined, true))
        join_server();
    return REAL(cuInit)(flags);
}
