/* The ledger of a slice: one file that the container's processes write, in a tmpfs with room for it and for nothing
 * else. Whoever writes may also grow, truncate or unlink; no more memory than this mount has can be taken by that. */
#include "_apply.h"
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/mount.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define INODES 2 /* its root and the file */
#define NAME "ledger"
#define LABEL_MAX 256

/* All of it is allocated at once: a process that maps it never meets a page that cannot be had. */
static int make_file(int mount, const char *content, size_t length, uint32_t size)
{
    int fd = openat(mount, NAME, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    int result = -1;

    if (fd < 0)
        return -1;
    if (fchmod(fd, 0666) == 0 && fallocate(fd, 0, 0, size) == 0) { /* whoever the container's users are */
        ssize_t written = pwrite(fd, content, length, 0);
        result = written == (ssize_t)length ? 0 : -1;
        if (written >= 0 && result < 0)
            errno = ENOSPC;
    }
    shut(fd);
    return result;
}

/* Whether an earlier run has mounted a ledger there: it holds accounts of living processes and stays. */
static bool is_there(struct applier *a, struct op *op)
{
    struct statfs fs;
    int fd = open_in_root(a->target->rootfs, op->target, O_PATH | O_DIRECTORY | O_NOFOLLOW, 0);
    bool there = nvc_is_mount_root(fd) == 1 && fstatfs(fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC &&
                 fs.f_files == INODES &&
                 (uint64_t)fs.f_blocks * (uint64_t)fs.f_bsize - op->head.operand < (uint64_t)fs.f_bsize;

    shut(fd);
    return there;
}

int op_ledger(struct applier *a, struct op *op)
{
    char label[LABEL_MAX] = "";
    uint32_t length = op->head.flags;
    int result = -1;

    if (is_there(a, op))
        return 0;
    if (length >= sizeof(label) || length > op->head.first_length)
        return fail(a, EINVAL, "label ledger", op->target);
    memcpy(label, op->first, length);
    int mount = make_tmpfs("nvc-ledger", op->head.operand, INODES, label);
    if (mount < 0)
        return fail(a, errno, "create tmpfs", op->target);
    if (make_file(mount, op->first + length, op->head.first_length - length, op->head.operand) < 0)
        fail(a, errno, "create ledger", op->target);
    else
        result = attach_new(a, mount, op->head.attributes, op->target);
    close(mount);
    return result;
}
