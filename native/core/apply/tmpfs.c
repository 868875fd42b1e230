/* Small tmpfs mounts, filled while nobody else can see them, with plain names only. */
#include "_apply.h"
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define SIZE_MIB 4
#define INODES 8192
#define CONTENT_MAX 65536

int make_tmpfs(const char *source, uint32_t size, uint32_t inodes, const char *label)
{
    char bytes[16], count[16];
    const char *options[] = {
        "source", source, "mode", "0555", "size", bytes, "nr_inodes", count, *label ? "context" : NULL,
        label,    NULL};

    snprintf(bytes, sizeof(bytes), "%u", size);
    snprintf(count, sizeof(count), "%u", inodes);
    return new_mount("tmpfs", options);
}

/* Whether `fd` is in a tmpfs made here. Others are volumes, of the host or of other containers. */
bool in_own_tmpfs(int fd)
{
    struct statfs fs;

    return fstatfs(fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC && fs.f_files == INODES &&
           (uint64_t)fs.f_blocks * (uint64_t)fs.f_bsize == (uint64_t)SIZE_MIB << 20;
}

/* The tmpfs of an earlier run that is mounted exactly at `path`, or -1. */
static int existing_tmpfs(struct applier *a, const char *path)
{
    struct nvc_identity found;
    int fd = open_in_root(a->target->rootfs, path, O_PATH | O_DIRECTORY | O_NOFOLLOW, 0);

    if (fd >= 0 && nvc_identity(fd, &found) == 0 && found.is_mount_root && (found.mode & 07777) == 0555 &&
        in_own_tmpfs(fd))
        return fd;
    shut(fd);
    return -1;
}

int op_tmpfs(struct applier *a, struct op *op)
{
    a->tmpfs_path = op->target;
    a->tmpfs = existing_tmpfs(a, op->target);
    a->tmpfs_is_new = a->tmpfs < 0;
    if (a->tmpfs_is_new)
        a->tmpfs = make_tmpfs("nvc", SIZE_MIB << 20, INODES, "");
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

/* A record of a change to the tmpfs of an earlier run; what is in a new one vanishes with it. */
static int record_inside(struct applier *a, char kind, const char *name, const char *data)
{
    char path[2 * NVC_PATH_MAX];

    snprintf(path, sizeof(path), "%s/%s", a->tmpfs_path, name);
    return record(a, kind, path, data);
}

int op_tmpfs_dir(struct applier *a, struct op *op)
{
    struct stat st = {0};
    const char *name;
    int parent = open_parent(a, op->target, &name);
    int made = -1;

    if (parent < 0)
        return -1;
    if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT) {
        int error = S_ISDIR(st.st_mode) ? 0 : EEXIST;
        close(parent);
        return error ? fail(a, error, "create in tmpfs", op->target) : 0;
    }
    if (a->tmpfs_is_new || record_inside(a, RECORD_DIRECTORY, op->target, "") == 0)
        made = mkdirat(parent, name, 0555);
    shut(parent);
    a->report->changes += made == 0 && !a->tmpfs_is_new;
    return made < 0 ? fail(a, errno, "create in tmpfs", op->target) : 0;
}

/* What a file of an earlier run holds, as data of a record: `+` and the content, or `-` when there is none. */
static char *old_content(struct applier *a, int parent, const char *name)
{
    char *data = calloc(1, CONTENT_MAX + 2);
    int fd = open_regular(a, parent, name);
    ssize_t size = fd < 0 ? -1 : data ? read(fd, data + 1, CONTENT_MAX + 1) : -1;

    if (data != NULL)
        data[0] = fd < 0 && errno == ENOENT ? '-' : '+';
    shut(fd);
    if (data != NULL && data[0] == '+' &&
        (size < 0 || (size_t)size != strlen(data + 1) || size > CONTENT_MAX)) {
        free(data);
        data = NULL;
    }
    return data;
}

/* Removes a file of an earlier run, unless it holds `content` already. Returns 1 when it is to be made. */
static int remove_old(struct applier *a, int parent, const char *name, struct op *op)
{
    char *data = old_content(a, parent, name);
    int result = -1;

    if (data == NULL)
        fail(a, EEXIST, "replace in tmpfs", op->target);
    else if (data[0] == '+' && strlen(data + 1) == op->head.first_length &&
             memcmp(data + 1, op->first, op->head.first_length) == 0)
        result = 0;
    else if (record_inside(a, RECORD_CONTENT, op->target, data) == 0) {
        result = unlinkat(parent, name, 0) < 0 && errno != ENOENT
                     ? fail(a, errno, "replace in tmpfs", op->target)
                     : 1;
        a->report->changes++;
    }
    free(data);
    return result;
}

/* Puts back what an earlier run's file held. */
int undo_content(struct place *place, const char *data)
{
    size_t size = strlen(data + 1);

    if (!in_own_tmpfs(place->parent))
        return 0;
    if (unlinkat(place->parent, place->name, 0) < 0 && errno != ENOENT)
        return -1;
    if (data[0] != '+')
        return 0;
    int fd = openat(place->parent, place->name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444);
    if (fd < 0)
        return -1;
    ssize_t written = write(fd, data + 1, size);
    close(fd);
    return written == (ssize_t)size ? 0 : -1;
}

int op_tmpfs_file(struct applier *a, struct op *op)
{
    const char *name;
    size_t size = op->head.first_length;
    int parent = open_parent(a, op->target, &name);

    if (parent < 0)
        return -1;
    int make = a->tmpfs_is_new ? 1 : remove_old(a, parent, name, op);
    if (make <= 0) {
        close(parent);
        return make;
    }
    int fd = openat(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444);
    shut(parent);
    if (fd < 0)
        return fail(a, errno, "create in tmpfs", op->target);
    ssize_t written = write(fd, op->first, size);
    int error = written < 0 ? errno : ENOSPC;
    close(fd);
    return written == (ssize_t)size ? 0 : fail(a, error, "write in tmpfs", op->target);
}

int op_attach(struct applier *a, struct op *op)
{
    int result = a->tmpfs_is_new ? attach_new(a, a->tmpfs, op->head.attributes, a->tmpfs_path) : 0;

    close(a->tmpfs);
    a->tmpfs = -1;
    if (result == 0 && a->first_tmpfs == NULL)
        a->first_tmpfs = a->tmpfs_path;
    return result;
}
