/* Bind mounts by descriptor: a source is cloned and hardened while it is still detached, so there is no moment
 * at which the container sees it writable, and the target is a held descriptor, so there is no path to race. */
#include "_apply.h"
#include "files.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#ifndef MOVE_MOUNT_F_EMPTY_PATH
#define MOVE_MOUNT_F_EMPTY_PATH 0x04
#define MOVE_MOUNT_T_EMPTY_PATH 0x40
#endif
#define PROPAGATION_PRIVATE (1u << 18) /* MS_PRIVATE: nothing that the host mounts below a source arrives */

/* Gives a detached mount its options, and makes it private. */
static int harden(int mount, uint64_t attributes)
{
    struct mount_attr attr = {.attr_set = attributes, .propagation = PROPAGATION_PRIVATE};

    return (int)syscall(SYS_mount_setattr, mount, "", AT_EMPTY_PATH, &attr, sizeof(attr));
}

int clone_tree(int fd, uint64_t attributes)
{
    int tree = (int)syscall(SYS_open_tree, fd, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);

    if (tree < 0 || harden(tree, attributes) == 0)
        return tree;
    shut(tree);
    return -1;
}

/* Clones every source, in the host's mount namespace: a mount can be cloned only in its own (open_tree(2)). */
int clone_sources(struct applier *a)
{
    for (size_t i = 0; i < a->count; i++) {
        struct op *op = &a->ops[i];
        if (op->head.kind != NVC_OP_BIND || (op->head.flags & NVC_BIND_INSIDE))
            continue;
        a->report->op = (int32_t)i;
        op->tree = clone_tree(op->head.fd, op->head.attributes);
        if (op->tree < 0)
            return fail(a, errno, "clone source mount", op->target);
    }
    return 0;
}

/* Whether a mount is known to have all these options. statvfs(3) has the numbers of mount_setattr(2) for four of them;
 * of any other one it says nothing here. */
static bool has_attributes(int fd, uint64_t attributes)
{
    const uint64_t told = ST_RDONLY | ST_NOSUID | ST_NODEV | ST_NOEXEC;
    struct statvfs vfs;

    _Static_assert(ST_RDONLY == MOUNT_ATTR_RDONLY && ST_NOSUID == MOUNT_ATTR_NOSUID &&
                       ST_NODEV == MOUNT_ATTR_NODEV && ST_NOEXEC == MOUNT_ATTR_NOEXEC,
                   "numbers of mount options");
    return (attributes & ~told) == 0 && fstatvfs(fd, &vfs) == 0 && (vfs.f_flag & attributes) == attributes;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino &&
           (a->st_mode & S_IFMT) == (b->st_mode & S_IFMT) && a->st_rdev == b->st_rdev;
}

/* What tells the mount whose root is `fd` from every other, also from one of the same file: a detached mount keeps
 * its id when it is attached. */
int mount_identity(int fd, char text[MOUNT_IDENTITY])
{
    struct nvc_identity found = {.is_mount_root = false};
    int result = nvc_identity(fd, &found);

    if (result < 0 || !found.is_mount_root) {
        errno = result < 0 ? -result : EINVAL;
        return -1;
    }
    snprintf(text, MOUNT_IDENTITY, "%x:%x:%llx:%llx", major(found.device), minor(found.device),
             (unsigned long long)found.inode, (unsigned long long)found.mount);
    return 0;
}

/* Attaches `tree` on `target`, a descriptor of what the place names now. */
int attach(struct applier *a, int tree, struct place *place, int target)
{
    char data[MOUNT_IDENTITY];

    if (stays_inside(a, place, target) < 0)
        return -1;
    if (mount_identity(tree, data) < 0)
        return fail(a, errno, "stat mount", place->path);
    if (record(a, RECORD_MOUNT, place->path, data) < 0)
        return -1;
    if (syscall(SYS_move_mount, tree, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0)
        return fail(a, errno, "mount operation failed", place->path);
    a->report->changes++;
    return 0;
}

/* Attaches a detached file system at `path`, with its options. */
int attach_new(struct applier *a, int mount, uint64_t attributes, const char *path)
{
    struct place place;

    if (harden(mount, attributes) < 0)
        return fail(a, errno, "set mount attributes", path);
    if (place_find(a, path, true, true, &place) < 0)
        return -1;
    int target = open_mountpoint(a, &place, S_IFDIR);
    int result = target < 0 ? -1 : attach(a, mount, &place, target);
    shut(target);
    place_close(&place);
    return result;
}

/* Opens what is at the place without following a link. When nothing is there, makes the mountpoint for something of the
 * mode `like`. It outlives the mount in the image, and is then what programs find: for a program, an empty script. */
int open_mountpoint(struct applier *a, struct place *place, mode_t like)
{
    bool directory = S_ISDIR(like);
    struct stat st;
    int fd = openat(place->parent, place->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0 && errno == ENOENT) {
        if ((directory ? place_make_directory(a, place)
                       : place_make_file(a, place, S_ISREG(like) ? like & 0755 : 0644)) < 0)
            return -1;
        fd = openat(place->parent, place->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    }
    if (fd < 0)
        return fail(a, errno, "open target", place->path);
    if (fstat(fd, &st) < 0 || S_ISLNK(st.st_mode) || S_ISDIR(st.st_mode) != directory) {
        close(fd);
        return fail(a,
                    directory             ? ENOTDIR
                    : S_ISDIR(st.st_mode) ? EISDIR
                                          : ELOOP,
                    "open target", place->path);
    }
    return fd;
}

int op_bind(struct applier *a, struct op *op)
{
    struct stat source, there;
    struct place place;
    int result = -1;

    /* Its mount is one of this namespace. A shim that lies over it by now does not matter: the descriptor is older. */
    if ((op->head.flags & NVC_BIND_INSIDE) && op->tree < 0)
        op->tree = clone_tree(op->head.fd, op->head.attributes);
    if (op->tree < 0)
        return fail(a, errno, "clone source mount", op->target);
    if (fstat(op->tree, &source) < 0)
        return fail(a, errno, "stat source", op->target);
    if (place_find(a, op->target, true, true, &place) < 0)
        return -1;
    int target = open_mountpoint(a, &place, op->head.flags & NVC_BIND_DIRECTORY ? S_IFDIR : source.st_mode);
    if (target >= 0 && fstat(target, &there) < 0) {
        fail(a, errno, "stat target", op->target);
    } else if (target >= 0 && same_file(&source, &there) && nvc_is_mount_root(target) == 1 &&
               has_attributes(target, op->head.attributes)) {
        result = 0; /* a run before this one did it */
    } else if (target >= 0) {
        /* What is shorter than the head of an ELF file was only left there to mount on. */
        if (S_ISREG(there.st_mode) && there.st_size >= (off_t)sizeof(Elf64_Ehdr) &&
            nvc_is_mount_root(target) != 1)
            warn(a, "a file of the image is covered", op->target);
        result = attach(a, op->tree, &place, target);
        op->attached = result == 0;
    }
    shut(target);
    place_close(&place);
    return result;
}

/* Covers the regular file at `place` with another clone of an attached bind. */
int cover_with_clone(struct applier *a, struct place *place, int tree)
{
    int target = open_mountpoint(a, place, S_IFREG | 0644);
    int clone = target < 0 ? -1
                           : (int)syscall(SYS_open_tree, tree, "",
                                          OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
    int result = -1;

    if (clone >= 0) {
        warn(a, "a file of the image is covered", place->path);
        result = attach(a, clone, place, target);
        close(clone);
    } else if (target >= 0) {
        fail(a, errno, "clone mount", place->path);
    }
    shut(target);
    return result;
}
