/* Opening things without following a path twice, and holding processes by descriptor. */
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <signal.h>
#include <stddef.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#ifndef RESOLVE_CACHED
#define RESOLVE_CACHED 0x20 /* Linux 5.12 */
#endif

int nvc_openat2(int dirfd, const char *path, uint64_t flags, uint64_t mode, uint64_t resolve)
{
    struct open_how how = {.flags = flags | O_CLOEXEC, .mode = mode, .resolve = resolve};
    long fd;
    int tries = 0;

    /* EAGAIN: a rename or mount raced with the walk (openat2(2), RESOLVE_IN_ROOT); bounded, since the
     * container may race on purpose. With RESOLVE_CACHED it says that something is not cached, which stays so. */
    int most = resolve & RESOLVE_CACHED ? 2 : 64;
    do
        fd = syscall(SYS_openat2, dirfd, path, &how, sizeof(how));
    while (fd < 0 && (errno == EINTR || (errno == EAGAIN && ++tries < most)));
    return fd < 0 ? -errno : (int)fd;
}

int nvc_pidfd_open(int pid)
{
    long fd = syscall(SYS_pidfd_open, pid, 0);
    return fd < 0 ? -errno : (int)fd;
}

int nvc_pidfd_send_signal(int pidfd, int sig)
{
    return syscall(SYS_pidfd_send_signal, pidfd, sig, NULL, 0) < 0 ? -errno : 0;
}

int nvc_lock(int fd, int timeout_ms)
{
    const struct timespec pause = {.tv_nsec = 2000000};
    struct timespec at;
    int64_t end = 0;

    /* flock(2) has no time-out of its own, and an alarm would reach into the caller's signal handling. The time is that
     * of the clock: on a busy host a pause takes several times as long, after a signal no time at all. */
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return -errno;
        clock_gettime(CLOCK_MONOTONIC, &at);
        int64_t now = (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
        if (end == 0)
            end = now + (int64_t)timeout_ms * 1000000;
        if (now >= end)
            return -ETIMEDOUT;
        nanosleep(&pause, NULL);
    }
    return 0;
}

int nvc_is_mount_root(int fd)
{
    struct statx sx;

    if (statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &sx) < 0)
        return -errno;
    return (sx.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

/* A mount of our own shows the root of our cgroup namespace, which need not be mounted anywhere. */
int nvc_cgroup_root(int version)
{
    int fs = (int)syscall(SYS_fsopen, version == 1 ? "cgroup" : "cgroup2", FSOPEN_CLOEXEC);
    int root = -1;

    if (fs < 0)
        return -errno;
    if ((version != 1 || syscall(SYS_fsconfig, fs, FSCONFIG_SET_FLAG, "devices", NULL, 0) == 0) &&
        syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
        root = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, 0);
    int error = errno;
    close(fs);
    return root < 0 ? -error : root;
}

int nvc_identity(int fd, struct nvc_identity *out)
{
    struct statx sx;

    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_BASIC_STATS | STATX_MNT_ID, &sx) < 0)
        return -errno;
    *out = (struct nvc_identity){makedev(sx.stx_dev_major, sx.stx_dev_minor), sx.stx_ino, sx.stx_mnt_id,
                                 sx.stx_mode, makedev(sx.stx_rdev_major, sx.stx_rdev_minor)};
    return 0;
}

int64_t nvc_birth_time(int fd)
{
    struct statx sx;

    if (statx(fd, "", AT_EMPTY_PATH, STATX_BTIME, &sx) < 0 || !(sx.stx_mask & STATX_BTIME))
        return 0;
    return sx.stx_btime.tv_sec * 1000000000 + sx.stx_btime.tv_nsec;
}
