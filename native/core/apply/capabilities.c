/* Capability sets of the calling process, as 64-bit masks. */
#include "apply.h"

#include <errno.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int nvc_capget(uint64_t *effective, uint64_t *permitted)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];

    if (syscall(SYS_capget, &header, data) < 0)
        return -errno;
    *effective = data[0].effective | (uint64_t)data[1].effective << 32;
    *permitted = data[0].permitted | (uint64_t)data[1].permitted << 32;
    return 0;
}

int nvc_capset(uint64_t kept)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    uint64_t effective, permitted = 0;
    int error = nvc_capget(&effective, &permitted);

    kept &= permitted;
    struct __user_cap_data_struct data[2] = {{(uint32_t)kept, (uint32_t)kept, 0},
                                             {(uint32_t)(kept >> 32), (uint32_t)(kept >> 32), 0}};
    return error < 0 ? error : syscall(SYS_capset, &header, data) < 0 ? -errno : 0;
}

/* Drops from the bounding set everything that is not in `bounding`; needs CAP_SETPCAP. */
int nvc_capbset_keep(uint64_t bounding)
{
    for (int capability = 0; capability < 64; capability++) {
        int has = prctl(PR_CAPBSET_READ, capability);
        if (has < 0)
            break; /* EINVAL: past the kernel's last capability */
        if (has && !(bounding >> capability & 1) && prctl(PR_CAPBSET_DROP, capability) < 0)
            return -errno;
    }
    return 0;
}
