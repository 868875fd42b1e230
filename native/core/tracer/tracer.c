/* The file system bpf, by which programs and maps outlive their descriptors. */
#include "tracer.h"

#include <errno.h>
#include <sys/mount.h>
#include <sys/vfs.h>

#define BPF_FS 0xcafe4a11 /* linux/magic.h: BPF_FS_MAGIC */

int nvc_bpf_mount(const char *directory)
{
    return mount("bpf", directory, "bpf", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0700") ? -errno : 0;
}

int nvc_bpf_is_mounted(const char *directory)
{
    struct statfs found;

    if (statfs(directory, &found))
        return -errno;
    return (uint32_t)found.f_type == BPF_FS;
}
