/* Mounts for a plain process that is given a slice: nothing of them is seen by anybody else. */
#include "private.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FD_PATH 64

static int receive_only(void)
{
    return mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL);
}

/* The same below chroot(2): only a mount point has a propagation, and "/" is not one there. setns(2) into the namespace
   that this thread is in makes the namespace's root its root; nothing is looked up by path until it is back. */
static int receive_only_outside(void)
{
    int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int here = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int ns = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    int result = -1;

    if (root >= 0 && here >= 0 && ns >= 0 && setns(ns, CLONE_NEWNS) == 0) {
        result = receive_only();
        int saved = errno;
        if (fchdir(root) < 0 || chroot(".") < 0 || fchdir(here) < 0)
            result = -1;
        else
            errno = saved;
    }
    int saved = errno, fds[] = {root, here, ns};
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        if (fds[i] >= 0)
            close(fds[i]);
    errno = saved;
    return result;
}

int nvc_private_mounts(void)
{
    if (unshare(CLONE_NEWNS) < 0)
        return -errno;
    if (receive_only() < 0 && (errno != EINVAL || receive_only_outside() < 0))
        return -errno;
    return 0;
}

static int set(int fs, const char *key, const char *value)
{
    return (int)syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, key, value, 0);
}

static int finish(int fs)
{
    int mount = -1;

    if (syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
        mount = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, 0);
    int saved = errno;
    close(fs);
    errno = saved;
    return mount;
}

/* A tmpfs that is mounted nowhere: the overlay keeps it alive. */
static int scratch_mount(void)
{
    int fs = (int)syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC);

    if (fs < 0)
        return -1;
    if (set(fs, "source", "nvc") == 0 && set(fs, "mode", "0755") == 0 && set(fs, "size", "1m") == 0)
        return finish(fs);
    close(fs);
    return -1;
}

/* Layers are named by descriptor: a path may have characters that overlay's options cannot. */
static int overlay(int lower, int upper, int work)
{
    char path[3][FD_PATH];
    int fs = (int)syscall(SYS_fsopen, "overlay", FSOPEN_CLOEXEC);

    if (fs < 0)
        return -1;
    snprintf(path[0], FD_PATH, "/proc/self/fd/%d", lower);
    snprintf(path[1], FD_PATH, "/proc/self/fd/%d", upper);
    snprintf(path[2], FD_PATH, "/proc/self/fd/%d", work);
    if (set(fs, "source", "nvc") == 0 && set(fs, "lowerdir", path[0]) == 0 &&
        set(fs, "upperdir", path[1]) == 0 && set(fs, "workdir", path[2]) == 0)
        return finish(fs);
    int saved = errno;
    close(fs);
    errno = saved;
    return -1;
}

int nvc_writable_over(const char *directory)
{
    int lower = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int scratch = scratch_mount(), upper = -1, work = -1, made = -1, result;
    struct stat st;

    if (lower >= 0 && scratch >= 0 && fstat(lower, &st) == 0 && mkdirat(scratch, "upper", 0755) == 0 &&
        mkdirat(scratch, "work", 0755) == 0) {
        upper = openat(scratch, "upper", O_PATH | O_DIRECTORY | O_CLOEXEC);
        work = openat(scratch, "work", O_PATH | O_DIRECTORY | O_CLOEXEC);
        /* The merged directory has the owner and mode of the upper one. */
        if (upper >= 0 && work >= 0 && fchmodat(scratch, "upper", st.st_mode & 07777, 0) == 0 &&
            fchownat(scratch, "upper", st.st_uid, st.st_gid, 0) == 0)
            made = overlay(lower, upper, work);
    }
    result =
        made >= 0 && syscall(SYS_move_mount, made, "", lower, "", 0x04 | 0x40 /* both by descriptor */) == 0
            ? 0
            : -errno;
    int fds[] = {lower, scratch, upper, work, made};
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        if (fds[i] >= 0)
            close(fds[i]);
    return result;
}

int nvc_prctl(int option, unsigned long value)
{
    return prctl(option, value, 0, 0, 0) < 0 ? -errno : 0;
}
