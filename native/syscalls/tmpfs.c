/* Small tmpfs mounts, filled while nobody else can see them, with plain names only. */
#include "_apply.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

static int configure_tmpfs(int fs, const char *key, const char *value)
{
    return (int)syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, key, value, 0);
}

static int new_tmpfs(void)
{
    int mount = -1;
    int fs = (int)syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC);

    if (fs < 0)
        return -1;
    if (configure_tmpfs(fs, "source", "nvc") == 0 && configure_tmpfs(fs, "mode", "0555") == 0 &&
        configure_tmpfs(fs, "size", "4m") == 0 && configure_tmpfs(fs, "nr_inodes", "8192") == 0 &&
        syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
        mount = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, 0);
    int saved = errno;
    close(fs);
    errno = saved;
    return mount;
}

/* A tmpfs that is mounted exactly at `path`, from an earlier run, or -1. */
static int existing_tmpfs(struct applier *a, const char *path)
{
    struct statx sx;
    struct statfs fs;
    int fd = open_in_root(a->target->rootfs, path, O_PATH | O_DIRECTORY | O_NOFOLLOW, 0);

    if (fd >= 0 && statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &sx) == 0 &&
        (sx.stx_attributes & STATX_ATTR_MOUNT_ROOT) && fstatfs(fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

int op_tmpfs(struct applier *a, struct op *op)
{
    a->tmpfs_path = op->target;
    a->tmpfs = existing_tmpfs(a, op->target);
    a->tmpfs_is_new = a->tmpfs < 0;
    if (a->tmpfs_is_new)
        a->tmpfs = new_tmpfs();
    return a->tmpfs < 0 ? fail(a, errno, "create tmpfs", op->target) : 0;
}

/* Opens the directory part of `path` in the tmpfs; links are refused, since nvc makes none there. */
static int open_parent(struct applier *a, const char *path, const char **name)
{
    char directory[NVC_PATH_MAX];
    const char *slash = strrchr(path, '/');

    if (strlen(path) >= sizeof(directory))
        return fail(a, ENAMETOOLONG, "create in tmpfs", path);
    *name = slash ? slash + 1 : path;
    memcpy(directory, path, (size_t)(*name - path));
    directory[slash ? slash - path : 0] = '\0';
    int fd = open_in_root(a->tmpfs, directory, O_PATH | O_DIRECTORY, RESOLVE_NO_SYMLINKS);
    return fd < 0 ? fail(a, errno, "create in tmpfs", path) : fd;
}

int op_tmpfs_dir(struct applier *a, struct op *op)
{
    char path[2 * NVC_PATH_MAX];
    const char *name;
    int parent = open_parent(a, op->target, &name);

    if (parent < 0)
        return -1;
    int made = mkdirat(parent, name, 0555);
    int saved = errno;
    close(parent);
    if (made < 0)
        return saved == EEXIST ? 0 : fail(a, saved, "create in tmpfs", op->target);
    if (a->tmpfs_is_new)
        return 0; /* vanishes with the mount */
    snprintf(path, sizeof(path), "%s/%s", a->tmpfs_path, op->target);
    a->report->changes++;
    return record(a, RECORD_DIRECTORY, path, "");
}

static bool same_content(int parent, const char *name, const char *content, size_t size)
{
    char buffer[65536];
    struct stat st;
    int fd = openat(parent, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool same = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (size_t)st.st_size == size &&
                size <= sizeof(buffer) && read(fd, buffer, sizeof(buffer)) == (ssize_t)size &&
                memcmp(buffer, content, size) == 0;

    if (fd >= 0)
        close(fd);
    return same;
}

int op_tmpfs_file(struct applier *a, struct op *op)
{
    const char *name;
    size_t size = op->head.first_length;
    int parent = open_parent(a, op->target, &name);

    if (parent < 0)
        return -1;
    if (!a->tmpfs_is_new) {
        if (same_content(parent, name, op->first, size)) {
            close(parent);
            return 0;
        }
        unlinkat(parent, name, 0);
        a->report->changes++;
    }
    int fd = openat(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444);
    int saved = errno;
    close(parent);
    if (fd < 0)
        return fail(a, saved, "create in tmpfs", op->target);
    ssize_t written = write(fd, op->first, size);
    saved = written < 0 ? errno : ENOSPC;
    close(fd);
    return written == (ssize_t)size ? 0 : fail(a, saved, "write in tmpfs", op->target);
}

int op_attach(struct applier *a, struct op *op)
{
    struct mount_attr attr = {.attr_set = op->head.attributes, .propagation = 1u << 18 /* MS_PRIVATE */};
    struct place place;
    int result = -1;

    if (a->tmpfs_is_new) {
        if (syscall(SYS_mount_setattr, a->tmpfs, "", AT_EMPTY_PATH, &attr, sizeof(attr)) < 0)
            return fail(a, errno, "set mount attributes", a->tmpfs_path);
        if (place_find(a, a->tmpfs_path, true, true, &place) < 0)
            return -1;
        int target = open_mountpoint(a, &place, true);
        if (target >= 0) {
            result = attach(a, a->tmpfs, &place, target);
            close(target);
        }
        place_close(&place);
    } else {
        result = 0;
    }
    close(a->tmpfs);
    a->tmpfs = -1;
    return result;
}
