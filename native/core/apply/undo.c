/* All or nothing. Each effect is recorded before it is made, in memory and in a journal on the host; undoing reads
 * the records backwards and touches only what still is what nvc made. The journal of a run that was killed is
 * undone by the next run with the same code. */
#include "_apply.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Kinds of records of names that others may need by now, where more than one host uses the tree: they may have mounted
 * there, and their mounts go with the name; their loader follows the links. They are harmless while nothing is there. */
static const char NAMES[] = {RECORD_FILE, RECORD_DIRECTORY, RECORD_LINK, RECORD_RELINK, '\0'};

/* statfs(2) and the sources of these file systems name them; linux/magic.h does not. */
#define LUSTRE_MAGIC 0x0bd00bd0
#define GPFS_MAGIC 0x47504653
#define BEEGFS_MAGIC 0x19830326
#define GFS2_MAGIC 0x01161970

/* A record is kind, path, NUL, data, NUL. */
int record(struct applier *a, char kind, const char *path, const char *data)
{
    struct buffer *r = &a->records;
    size_t before = r->size;
    bool kept = buffer_add(r, &kind, 1) && buffer_add(r, path, strlen(path) + 1) &&
                buffer_add(r, data, strlen(data) + 1);
    ssize_t size = (ssize_t)(r->size - before);

    if (kept &&
        (a->target->journal < 0 || write(a->target->journal, r->bytes + before, (size_t)size) == size))
        return 0;
    r->size = before;
    return kept ? fail(a, errno ? errno : ENOSPC, "write journal", path) : fail(a, ENOMEM, "record", path);
}

/* Takes back the newest records, down to `size` bytes: what they name was not made here. */
void withdraw(struct applier *a, size_t size)
{
    off_t end = a->target->journal >= 0
                    ? lseek(a->target->journal, (off_t)size - (off_t)a->records.size, SEEK_CUR)
                    : -1;

    if (end >= 0)
        (void)!ftruncate(a->target->journal, end); /* a record too many undoes only what is empty */
    a->records.size = size;
}

/* The data of the record at `at`; NULL where it is cut short, as a kill can leave it: its effect was not made. */
static const char *data_of(const char *bytes, size_t size, size_t at)
{
    const char *path_end = at < size ? memchr(bytes + at + 1, '\0', size - at - 1) : NULL;
    size_t data = path_end ? (size_t)(path_end + 1 - bytes) : size;

    return data < size && memchr(bytes + data, '\0', size - data) ? bytes + data : NULL;
}

static bool is_there(struct applier *a, const char *path, const char *data)
{
    char now[MOUNT_IDENTITY];
    int fd = open_in_root(a->target->rootfs, path, O_PATH | O_NOFOLLOW, 0);
    bool same = fd >= 0 && mount_identity(fd, now) == 0 && strcmp(now, data) == 0;

    shut(fd);
    return same;
}

/* Whoever removes a name takes every mount on it away, in other mount namespaces and from other hosts too (rmdir(2),
 * unlink(2)). So what this run has mounted is looked for before it says that all is done. */
int mounts_are_there(struct applier *a)
{
    const char *bytes = a->records.bytes, *data;

    for (size_t at = 0; (data = data_of(bytes, a->records.size, at)) != NULL;
         at = (size_t)(data - bytes) + strlen(data) + 1)
        if (bytes[at] == RECORD_MOUNT && !is_there(a, bytes + at + 1, data))
            return fail_as(a, NVC_FAILED_LOST, ESTALE, "mount operation failed", bytes + at + 1);
    return 0;
}

static int undo_mount(struct place *place, const char *data)
{
    char now[MOUNT_IDENTITY];
    int fd = openat(place->parent, place->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0)
        return errno == ENOENT ? 0 : -1;
    bool ours = mount_identity(fd, now) == 0 && strcmp(now, data) == 0;
    close(fd);
    if (!ours)
        return 0; /* the kill came between the record and the mount */
    /* umount2(2) takes no descriptor: the held directory becomes the working one, and a mountpoint's name cannot
     * be renamed away in its own namespace (EBUSY). */
    if (fchdir(place->parent) < 0)
        return -1;
    return umount2(place->name, MNT_DETACH | UMOUNT_NOFOLLOW);
}

static int undo_file(struct place *place)
{
    struct stat st;

    if (fstatat(place->parent, place->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : -1;
    return S_ISREG(st.st_mode) && st.st_size == 0 ? place_remove(place, place->name, 0) : 0;
}

static bool link_is(struct place *place, const char *text, size_t size)
{
    char now[NVC_PATH_MAX];
    ssize_t length = readlinkat(place->parent, place->name, now, sizeof(now));

    return length == (ssize_t)size && memcmp(now, text, size) == 0;
}

static int undo_relink(struct place *place, const char *data)
{
    const char *newline = strchr(data, '\n');

    if (newline == NULL || !link_is(place, data, (size_t)(newline - data)))
        return 0;
    return link_replace(place, newline + 1);
}

/* Whether other hosts may have the file system, too. */
static bool is_of_many(int fd)
{
    static const uint32_t types[] = {NFS_SUPER_MAGIC,  SMB_SUPER_MAGIC,  CIFS_SUPER_MAGIC, SMB2_SUPER_MAGIC,
                                     FUSE_SUPER_MAGIC, V9FS_MAGIC,       AFS_SUPER_MAGIC,  AFS_FS_MAGIC,
                                     CEPH_SUPER_MAGIC, LUSTRE_MAGIC,     GPFS_MAGIC,       BEEGFS_MAGIC,
                                     GFS2_MAGIC,       OCFS2_SUPER_MAGIC};
    struct statfs vfs;

    if (fstatfs(fd, &vfs) < 0)
        return false;
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
        if ((uint32_t)vfs.f_type == types[i])
            return true;
    return false;
}

static int undo_at(char kind, struct place *place, const char *data)
{
    switch (kind) {
    case RECORD_MOUNT:
        return undo_mount(place, data);
    case RECORD_FILE:
        return undo_file(place);
    case RECORD_DIRECTORY:
        if (place_remove(place, place->name, AT_REMOVEDIR) == 0)
            return 0;
        return errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR ? 0 : -1; /* others use it by now */
    case RECORD_LINK:
        return link_is(place, data, strlen(data)) ? place_remove(place, place->name, 0) : 0;
    case RECORD_RELINK:
        return undo_relink(place, data);
    case RECORD_TEMPORARY:
        return place_remove(place, place->name, 0);
    case RECORD_EXCHANGE:
        return undo_exchange(place, data);
    case RECORD_CONTENT:
        return undo_content(place, data);
    default:
        errno = EPROTO;
        return -1;
    }
}

static int undo_one(struct applier *a, char kind, const char *path, const char *data)
{
    struct place place;

    if (kind == RECORD_PLACE || kind == RECORD_KEPT)
        return 0;
    if (place_find(a, path, false, false, &place) < 0) {
        int error = a->report->error;
        a->report->error = 0;
        errno = error;
        /* Its directory is gone: nothing is left to undo there. */
        return error == ENOENT || error == ENOTDIR || error == ELOOP ? 0 : -1;
    }
    bool kept = strchr(NAMES, kind) && (a->target->leave || is_of_many(place.parent));
    int result = kept ? 0 : undo_at(kind, &place, data);
    place_close(&place);
    return result;
}

/* Undoes the records in `bytes`, newest first. Returns how many could not be undone. */
unsigned undo_records(struct applier *a, const char *bytes, size_t size)
{
    size_t *starts = malloc((size / 3 + 1) * sizeof(*starts)), count = 0, at = 0;
    unsigned failures = 0;
    struct nvc_report kept = *a->report; /* a failing lookup here must not hide why we undo */

    a->undo_error = ENOMEM;
    if (starts == NULL)
        return 1;
    for (const char *data; (data = data_of(bytes, size, at)) != NULL;
         at = (size_t)(data - bytes) + strlen(data) + 1)
        starts[count++] = at;
    a->report->error = 0;
    while (count > 0) {
        const char *path = bytes + starts[--count] + 1;
        if (undo_one(a, path[-1], path, path + strlen(path) + 1) < 0 && failures++ == 0) {
            a->undo_error = errno ? errno : EIO;
            a->undo_path = path;
        }
    }
    *a->report = kept;
    free(starts);
    return failures;
}
