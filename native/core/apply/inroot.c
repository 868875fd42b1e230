/* Lookups inside a container's rootfs. The tree below the root descriptor belongs to somebody hostile who may
 * change it while we look: nothing here ever resolves a path against anything but that descriptor. */
#include "_apply.h"
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/mount.h>

#define LINKS_MAX 40 /* MAXSYMLINKS of path_resolution(7) */
#define DEPTH_MAX 8  /* of dangling links whose directories are behind dangling links */

int open_in_root(int root, const char *path, uint64_t flags, uint64_t extra_resolve)
{
    int fd = nvc_open_below(root, path, flags, extra_resolve);

    errno = fd < 0 ? -fd : errno;
    return fd < 0 ? -1 : fd;
}

/* Opens a name to read it, if it is a regular file, else EINVAL. It is looked at first, and that very inode is opened
 * then: to open a device of an image, as root of the host, may be to do something with it. */
int open_regular(struct applier *a, int directory, const char *name)
{
    char number[16];
    struct stat st;
    int fd = -1, seen = openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);

    if (seen < 0)
        return -1;
    snprintf(number, sizeof(number), "%d", seen);
    if (fstat(seen, &st) == 0) {
        if (S_ISREG(st.st_mode))
            fd = openat(a->descriptors, number, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        else
            errno = EINVAL;
    }
    shut(seen);
    return fd;
}

/* Splits `path` at its last component: `directory` gets what is before it, returns the component. */
static const char *split(const char *path, char directory[NVC_PATH_MAX])
{
    size_t length = strlen(path);
    const char *base;

    memcpy(directory, path, length + 1);
    while (length > 0 && directory[length - 1] == '/')
        directory[--length] = '\0';
    char *slash = strrchr(directory, '/');
    if (slash == NULL) {
        base = path;
        directory[0] = '\0';
    } else {
        base = path + (slash - directory) + 1;
        *slash = '\0';
    }
    return base;
}

/* Replaces the last component of `path` by the link text found there: the path that the link leads to. */
static int redirect(char path[NVC_PATH_MAX], const char *directory, const char *text)
{
    char next[NVC_PATH_MAX];
    int length = text[0] == '/' ? snprintf(next, sizeof(next), "%s", text)
                                : snprintf(next, sizeof(next), "%s/%s", directory, text);
    if (length < 0 || (size_t)length >= sizeof(next)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(path, next, (size_t)length + 1);
    return 0;
}

/* Whether both are on the same mount, not merely in the same file system. */
static bool same_mount(int one, int other)
{
    struct nvc_identity a, b;

    return nvc_identity(one, &a) == 0 && nvc_identity(other, &b) == 0 && a.mount == b.mount;
}

static int make_parents(struct applier *a, const char *directory);

static int open_directory(struct applier *a, const char *directory, bool create)
{
    int fd = open_in_root(a->target->rootfs, directory, O_PATH | O_DIRECTORY, 0);
    if (fd >= 0 || errno != ENOENT || !create)
        return fd;
    if (a->depth == DEPTH_MAX) {
        errno = ELOOP;
        return -1;
    }
    a->depth++;
    int made = make_parents(a, directory);
    a->depth--;
    return made < 0 ? -1 : open_in_root(a->target->rootfs, directory, O_PATH | O_DIRECTORY, 0);
}

/* Finds the parent directory and final name of `path`. With `follow`, links at the end are followed inside the
 * root, dangling ones too: the place is then where the link leads. With `create`, missing directories are made. */
int place_find(struct applier *a, const char *path, bool follow, bool create, struct place *place)
{
    char directory[NVC_PATH_MAX], text[NVC_PATH_MAX];

    place->parent = place->writer = -1;
    place->root = a->target->rootfs;
    if (strlen(path) >= sizeof(place->path))
        return fail(a, ENAMETOOLONG, "find", path);
    strcpy(place->path, path);
    if (a->depth == 0)
        a->asked = path;
    for (int links = 0; links < LINKS_MAX; links++) {
        const char *base = split(place->path, directory);
        size_t length = strcspn(base, "/");
        if (length == 0 || length > NAME_MAX || (length <= 2 && strncmp(base, "..", length) == 0))
            return fail(a, length > NAME_MAX ? ENAMETOOLONG : EINVAL, "find", path);
        memcpy(place->name, base, length);
        place->name[length] = '\0';
        place->parent = open_directory(a, directory, create);
        if (place->parent < 0)
            return a->report->error ? -1 : fail(a, errno, "open directory", directory);
        ssize_t size = follow ? readlinkat(place->parent, place->name, text, sizeof(text) - 1) : -1;
        if (size < 0)
            return 0; /* EINVAL: not a link; ENOENT: nothing there yet; others show when it is used */
        text[size] = '\0';
        place_close(place);
        if (redirect(place->path, directory, text) < 0)
            return fail(a, errno, "follow link", path);
    }
    return fail(a, ELOOP, "follow link", path);
}

void place_close(struct place *place)
{
    shut(place->parent);
    shut(place->writer);
    place->parent = place->writer = -1;
}

/* A descriptor of the place's directory through which it can be written although the container sees it
 * read-only: a private clone of the mount with the flag cleared. Only the mount's flag can be cleared, not the
 * file system's own. And only the rootfs's own mount: on any other lies a volume, part of the host or of another
 * container, that somebody gave read-only. Returns a descriptor owned by the place, or -1 with EROFS. */
int place_writer(struct place *place)
{
    struct mount_attr attr = {.attr_clr = MOUNT_ATTR_RDONLY};
    int tree = -1;

    if (place->writer >= 0)
        return place->writer;
    if (same_mount(place->parent, place->root))
        tree = (int)syscall(SYS_open_tree, place->parent, "",
                            OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
    if (tree < 0 || syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attr, sizeof(attr)) < 0) {
        shut(tree);
        errno = EROFS;
        return -1;
    }
    place->writer = tree;
    return tree;
}

/* Calls `make` on the place's directory, and once more through a writable clone if that is read-only. */
static int make_with(struct place *place, int (*make)(int directory, const char *name, mode_t mode),
                     mode_t mode)
{
    int result = make(place->parent, place->name, mode);
    if (result < 0 && errno == EROFS && place_writer(place) >= 0)
        result = make(place->writer, place->name, mode);
    return result;
}

static int make_file(int directory, const char *name, mode_t mode)
{
    int fd = openat(directory, name, O_RDONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0)
        return -1;
    close(fd);
    return 0;
}

/* Whether `place` is on the mount of the last directory of `path` before what is missing yet, or a link. */
static bool is_on_mount_of(const struct place *place, char *path)
{
    int fd = -1;

    while (fd < 0) {
        char *slash = strrchr(path, '/');
        path[slash ? slash - path : 0] = '\0';
        fd = open_in_root(place->root, path, O_PATH | O_DIRECTORY, RESOLVE_NO_SYMLINKS);
        if (fd < 0 && !slash)
            return false;
    }
    bool on = same_mount(place->parent, fd);
    close(fd);
    return on;
}

/* Refuses to change names on another mount, such as a volume, where nobody in the container need have the right to, as
 * nvc has. With EXDEV where a link of the image leads there from the path of the operation; that /lib leads to /usr/lib is
 * no such link, where /usr is a mount. With EOVERFLOW where the directory is not of the root of the user namespace. */
int place_is_meant(struct applier *a, const struct place *place)
{
    char path[NVC_PATH_MAX + sizeof("/usr")];
    struct stat st;

    if (a->target->keep || same_mount(place->parent, place->root))
        return 0; /* without a container, the host's mounts are meant */
    if (a->target->fsuid != geteuid() && (fstat(place->parent, &st) < 0 || st.st_uid != a->target->fsuid))
        return fail(a, EOVERFLOW, "change directory", place->path);
    strcpy(path, a->asked);
    if (is_on_mount_of(place, path))
        return 0;
    if (strncmp(a->asked, "/lib", 4) == 0 || strncmp(a->asked, "/bin/", 5) == 0 ||
        strncmp(a->asked, "/sbin/", 6) == 0) {
        snprintf(path, sizeof(path), "/usr%s", a->asked);
        if (is_on_mount_of(place, path))
            return 0;
    }
    return fail(a, EXDEV, "follow link", place->path);
}

/* Makes an empty file, or a directory, to mount on. Something that appeared meanwhile is left to the caller, and no
 * undo removes it. */
static int make_recorded(struct applier *a, struct place *place, char kind,
                         int (*make)(int, const char *, mode_t), mode_t mode, const char *step)
{
    size_t before = a->records.size;

    if (place_is_meant(a, place) < 0 || record(a, kind, place->path, "") < 0)
        return -1;
    if (make_with(place, make, mode) == 0)
        return 0;
    if (errno != EEXIST)
        return fail(a, errno, step, place->path);
    withdraw(a, before);
    return 0;
}

int place_make_file(struct applier *a, struct place *place, mode_t mode)
{
    return make_recorded(a, place, RECORD_FILE, make_file, mode, "file creation failed");
}

int place_make_directory(struct applier *a, struct place *place)
{
    return make_recorded(a, place, RECORD_DIRECTORY, mkdirat, 0755, "directory creation failed");
}

/* Removes a name in the place's directory; one that is not there is no error. */
int place_remove(struct place *place, const char *name, int flags)
{
    struct stat st;

    /* What was never made on a read-only volume would be refused for the volume's sake. */
    if (fstatat(place->parent, name, &st, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT)
        return 0;
    int result = unlinkat(place->parent, name, flags);
    if (result < 0 && errno == EROFS && place_writer(place) >= 0)
        result = unlinkat(place->writer, name, flags);
    return result < 0 && errno != ENOENT ? -1 : 0;
}

/* Gives the place's name to `from`, another name in its directory. */
int place_rename(struct place *place, const char *from)
{
    int result = renameat(place->parent, from, place->parent, place->name);
    if (result < 0 && errno == EROFS && place_writer(place) >= 0)
        result = renameat(place->writer, from, place->writer, place->name);
    return result;
}

/* Makes every missing directory of `directory`, following links in the root, dangling ones too. */
static int make_parents(struct applier *a, const char *directory)
{
    char prefix[NVC_PATH_MAX];
    size_t length = strlen(directory);

    memcpy(prefix, directory, length + 1);
    for (size_t end = 1; end <= length; end++) {
        struct place place;
        if (prefix[end] != '/' && prefix[end] != '\0')
            continue;
        prefix[end] = '\0';
        int fd = prefix[0] && strcmp(prefix, "/")
                     ? open_in_root(a->target->rootfs, prefix, O_PATH | O_DIRECTORY, 0)
                     : dup(a->target->rootfs);
        if (fd >= 0) {
            close(fd);
        } else if (errno != ENOENT) {
            return fail(a, errno, "open directory", prefix);
        } else {
            if (place_find(a, prefix, true, true, &place) < 0)
                return -1;
            int made = place_make_directory(a, &place);
            place_close(&place);
            if (made < 0)
                return -1;
        }
        if (end < length)
            prefix[end] = '/';
    }
    return 0;
}
