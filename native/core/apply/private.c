/* Mounts for a plain process that is given a slice: nothing of them is seen by anybody else. And what only Python calls. */
#include "private.h"
#include "_files.h"

#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#define FD_PATH 64
#define BPF_FS 0xcafe4a11 /* linux/magic.h: BPF_FS_MAGIC */

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
    shut(root);
    shut(here);
    shut(ns);
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

/* A tmpfs that is mounted nowhere: the overlay keeps it alive. */
static int scratch_mount(void)
{
    static const char *const options[] = {"source", "nvc", "mode", "0755", "size", "1m", NULL};

    return new_mount("tmpfs", options);
}

/* Layers are named by descriptor: a path may have characters that overlay's options cannot. */
static int overlay(int lower, int upper, int work)
{
    char path[3][FD_PATH];
    const char *const options[] = {"source", "nvc",     "lowerdir", path[0], "upperdir",
                                   path[1],  "workdir", path[2],    NULL};

    snprintf(path[0], FD_PATH, "/proc/self/fd/%d", lower);
    snprintf(path[1], FD_PATH, "/proc/self/fd/%d", upper);
    snprintf(path[2], FD_PATH, "/proc/self/fd/%d", work);
    return new_mount("overlay", options);
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
    shut(lower);
    shut(scratch);
    shut(upper);
    shut(work);
    shut(made);
    return result;
}

int nvc_prctl(int option, unsigned long value)
{
    return prctl(option, value, 0, 0, 0) < 0 ? -errno : 0;
}

int nvc_bpf_mount(const char *directory)
{
    return mount("bpf", directory, "bpf", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0700") ? -errno : 0;
}

int nvc_bpf_is_mounted(const char *directory)
{
    struct statfs found;

    return statfs(directory, &found) ? -errno : (uint32_t)found.f_type == BPF_FS;
}
