/* The container's /etc/ld.so.cache: read through the rootfs, merged in memory, written beside and renamed. */
#include "_apply.h"
#include "_ldcache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <linux/openat2.h>
#include <linux/mount.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ENTRIES_MAX 1024
#define TEMPORARY_MAX (sizeof(CACHE_TEMPORARY) + 17)

/* Decodes the entries of the operation; a malformed program is our bug, reported as EPROTO. */
static int decode(const struct op *op, struct nvc_ldcache_entry *entries, size_t *count)
{
    const char *at = op->first, *end = op->first + op->head.first_length;

    *count = 0;
    while (at < end) {
        struct nvc_ldcache_entry *entry = &entries[*count];
        const char *soname_end, *path_end;
        if (*count == ENTRIES_MAX || end - at < 4)
            return -EPROTO;
        memcpy(&entry->arch_flags, at, 4);
        entry->soname = at + 4;
        soname_end = memchr(entry->soname, '\0', (size_t)(end - entry->soname));
        path_end = soname_end ? memchr(soname_end + 1, '\0', (size_t)(end - soname_end - 1)) : NULL;
        if (path_end == NULL)
            return -EPROTO;
        entry->path = soname_end + 1;
        at = path_end + 1;
        ++*count;
    }
    return 0;
}

/* Errors of the host, which tell nothing of the image. */
static bool is_of_host(int error)
{
    return error == EIO || error == ENOMEM || error == EMFILE || error == ENFILE;
}

/* The old cache; false, with errno, where the host fails. Whatever else cannot be a cache is `unusable`: a container's start
 * must not be given up for that. */
static bool read_old(struct applier *a, struct place *place, struct buffer *old, bool *unusable)
{
    int fd = open_regular(a, place->parent, place->name);
    bool whole = fd >= 0 && buffer_read(old, fd, NVC_LDCACHE_MAX);
    bool failed = fd < 0 ? is_of_host(errno) : !whole && errno != EFBIG;

    *unusable = !whole && !failed && (fd >= 0 || errno != ENOENT);
    shut(fd);
    return !failed;
}

static void describe(const struct stat *st, char mark, char text[64])
{
    snprintf(text, 64, "%c%llx:%llx", mark, (unsigned long long)st->st_dev, (unsigned long long)st->st_ino);
}

/* Puts the new file in its place. The old one gets the temporary name: a run that is stopped later is undone. */
static int exchange(struct applier *a, struct place *place, int directory, const struct stat *new)
{
    char data[64];
    struct stat old;
    bool present = fstatat(directory, place->name, &old, AT_SYMLINK_NOFOLLOW) == 0;

    describe(new, present ? '+' : '-', data);
    if (record(a, RECORD_EXCHANGE, place->path, data) < 0)
        return -1;
    if (present && !S_ISDIR(old.st_mode) &&
        syscall(SYS_renameat2, directory, CACHE_TEMPORARY, directory, place->name, RENAME_EXCHANGE) == 0) {
        a->old_cache = dup(directory);
        return a->old_cache < 0 ? fail(a, errno, "write loader cache", place->path) : 0;
    }
    /* Not every file system can exchange names (NFS); there the old file is lost. */
    if (renameat(directory, CACHE_TEMPORARY, directory, place->name) < 0)
        return fail(a, errno, "write loader cache", place->path);
    return 0;
}

/* Puts back the old cache if the new one, known by its inode, is in its place. */
int undo_exchange(struct place *place, const char *data)
{
    char now[64];
    struct stat st;

    if (fstatat(place->parent, place->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : -1;
    describe(&st, data[0], now);
    if (strcmp(now, data) != 0)
        return 0;
    if (data[0] == '-')
        return place_remove(place, place->name, 0);
    return place_rename(place, CACHE_TEMPORARY) < 0 && errno != ENOENT ? -1 : 0;
}

/* Whether other hosts may do the same at this moment; but not where the old cache is kept for somebody to undo it. */
static bool is_shared(const struct applier *a)
{
    return a->target->leave && !a->target->keep;
}

/* The name of the new file, of this run alone where the directory is shared. */
static int name_temporary(const struct applier *a, char name[TEMPORARY_MAX])
{
    uint64_t number = 0;

    if (is_shared(a) && getrandom(&number, sizeof(number), 0) != sizeof(number))
        return -1;
    snprintf(name, TEMPORARY_MAX, is_shared(a) ? CACHE_TEMPORARY "-%016llx" : CACHE_TEMPORARY,
             (unsigned long long)number);
    return 0;
}

static int replace_cache(struct applier *a, struct place *place, const uint8_t *bytes, size_t size)
{
    char path[NVC_PATH_MAX + TEMPORARY_MAX], name[TEMPORARY_MAX];
    struct stat new;
    int directory = place->parent;

    if (place_is_meant(a, place) < 0)
        return -1;
    if (name_temporary(a, name) < 0)
        return fail(a, errno, "write loader cache", place->path);
    snprintf(path, sizeof(path), "%.*s%s", (int)(strlen(place->path) - strlen(place->name)), place->path,
             name);
    if (record(a, RECORD_TEMPORARY, path, "") < 0)
        return -1;
    if (faccessat(directory, ".", W_OK, AT_EACCESS) < 0 && errno == EROFS) {
        directory = place_writer(place);
        if (directory < 0)
            return fail(a, EROFS, "write loader cache", place->path);
    }
    if (unlinkat(directory, name, 0) < 0 && errno != ENOENT)
        return fail(a, errno, "write loader cache", path);
    int fd = openat(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return fail(a, errno, "write loader cache", path);
    int failed = !write_all(fd, bytes, size) || fstat(fd, &new) < 0 ? errno : 0;
    if (close(fd) < 0 && !failed)
        failed = errno;
    if (failed)
        return fail(a, failed, "write loader cache", place->path);
    /* Of hosts that do the same, the last one has its file there: the old one is nobody's to put back. */
    if (is_shared(a)) {
        if (renameat(directory, name, directory, place->name) < 0)
            return fail(a, errno, "write loader cache", place->path);
    } else if (exchange(a, place, directory, &new) < 0)
        return -1;
    a->report->changes++;
    return 0;
}

/* Where the directory cannot be written, as in a read-only volume, the cache is bound over the old one. It lies
 * in the tmpfs of /proc/driver, which is in this mount namespace: only there can it be cloned (open_tree(2)). */
static int bind_cache(struct applier *a, struct place *place, const uint8_t *bytes, size_t size)
{
    const uint64_t attributes = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
    int result = -1, tree = -1, target = -1, file = -1;
    int directory = a->first_tmpfs == NULL ? -1
                                           : open_in_root(a->target->rootfs, a->first_tmpfs,
                                                          O_PATH | O_DIRECTORY, RESOLVE_NO_SYMLINKS);

    if (directory < 0 || !in_own_tmpfs(directory) ||
        (unlinkat(directory, CACHE_TEMPORARY, 0) < 0 && errno != ENOENT) ||
        (file = openat(directory, CACHE_TEMPORARY, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                       0444)) < 0 ||
        !write_all(file, bytes, size)) {
        fail(a, directory < 0 ? EROFS : errno, "write loader cache", place->path);
    } else {
        close(file);
        file = openat(directory, CACHE_TEMPORARY, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        tree = file < 0 ? -1 : clone_tree(file, attributes);
        if (tree < 0)
            fail(a, errno, "clone loader cache", place->path);
        else
            target = open_mountpoint(a, place, S_IFREG | 0644);
        if (target >= 0)
            result = attach(a, tree, place, target);
    }
    shut(directory);
    shut(file);
    shut(tree);
    shut(target);
    return result;
}

static bool is_writable(struct place *place)
{
    return faccessat(place->parent, ".", W_OK, AT_EACCESS) == 0 || errno != EROFS ||
           place_writer(place) >= 0;
}

int op_ldcache(struct applier *a, struct op *op)
{
    struct nvc_ldcache_entry entries[ENTRIES_MAX];
    struct place place;
    struct buffer old = {.bytes = NULL};
    size_t count, new_size;
    uint8_t *merged = NULL;
    bool unusable;

    if (decode(op, entries, &count) < 0)
        return fail_as(a, NVC_FAILED_PROGRAM, EPROTO, "decode loader cache entries", op->target);
    if (place_find(a, op->target, true, true, &place) < 0)
        return -1;
    if (!read_old(a, &place, &old, &unusable)) {
        fail(a, errno, "read loader cache", op->target);
        free(old.bytes);
        place_close(&place);
        return -1;
    }
    const uint8_t *bytes = (const uint8_t *)old.bytes;
    int result =
        unusable ? -EBADMSG : nvc_ldcache_merge(bytes, old.size, entries, count, &merged, &new_size);
    if (result == -EBADMSG) {
        warn(a, "the image's loader cache is unusable and was replaced", op->target);
        result = nvc_ldcache_merge(NULL, 0, entries, count, &merged, &new_size);
    }
    if (result < 0)
        result = fail(a, -result, "merge loader cache", op->target);
    else if (new_size == old.size && memcmp(merged, bytes, new_size) == 0)
        place_remove(&place, CACHE_TEMPORARY, 0); /* of a run that could not: no reason to fail */
    else if (is_writable(&place))
        result = replace_cache(a, &place, merged, new_size);
    else
        result = bind_cache(a, &place, merged, new_size);
    free(merged);
    free(old.bytes);
    place_close(&place);
    return result;
}
