/* Internal to the applier: state of the one child that works inside a container. */
#pragma once
#include "_files.h"
#include "apply.h"

#include <limits.h>
#include <sys/types.h>

#define NVC_PATH_MAX 4096

/* A decoded operation; the strings point into the program. */
struct op {
    struct nvc_op_header head;
    const char *target;
    const char *first;
    int tree; /* detached or attached mount of a bind, -1 */
    bool attached;
};

struct applier {
    const struct nvc_apply_target *target;
    struct nvc_report *report;
    struct op *ops;
    size_t count;
    struct buffer
        records; /* of effects, newest last: for undoing an error; the journal has them for the next run */
    int descriptors; /* the host's /proc/self/fd of this process: the container may have another /proc */
    char *inside;    /* the container's list of mounts, NULL: not read yet (propagation.c) */
    struct buffer outside; /* numbers: groups of mounts of other namespaces, none: not read yet */
    int tmpfs;             /* directory of the tmpfs being filled */
    bool tmpfs_is_new;     /* not attached yet */
    const char *tmpfs_path;
    const char *first_tmpfs; /* path of the first one attached, or NULL */
    int old_cache;           /* directory that still holds the old loader cache, -1 */
    unsigned depth;          /* of links to missing directories that lead through further ones */
    const char *asked;       /* at depth 0: the path of the place that is looked for */
    int undo_error;          /* why the first record that could not be undone could not */
    const char *undo_path;
};

/* Where something is or will be: an open parent directory and a name that is not followed. */
struct place {
    int parent;              /* O_PATH, on the mount that the container sees */
    int writer;              /* the same directory through a private writable mount, or -1 */
    int root;                /* the rootfs, whose own mount is the only one written through */
    char path[NVC_PATH_MAX]; /* relative to the rootfs, for records and messages */
    char name[NAME_MAX + 1];
};

/* All below return 0 or a descriptor, or -1 with errno set and the report's step and path filled in. */
int fail(struct applier *a, int error, const char *step, const char *path);
int fail_as(struct applier *a, int failure, int error, const char *step, const char *path);
void warn(struct applier *a, const char *text, const char *path);

/* inroot.c: every lookup is openat2 with RESOLVE_IN_ROOT below a held descriptor. */
int open_in_root(int root, const char *path, uint64_t flags, uint64_t extra_resolve);
int open_regular(struct applier *a, int directory, const char *name);
int place_find(struct applier *a, const char *path, bool follow, bool create, struct place *place);
void place_close(struct place *place);
int place_is_meant(struct applier *a, const struct place *place);
int place_writer(struct place *place);
int place_make_file(struct applier *a, struct place *place, mode_t mode);
int place_make_directory(struct applier *a, struct place *place);
int place_remove(struct place *place, const char *name, int flags);
int place_rename(struct place *place, const char *from);

/* mounts.c */
int clone_sources(struct applier *a);
int op_bind(struct applier *a, struct op *op);
int clone_tree(int fd, uint64_t attributes);
int open_mountpoint(struct applier *a, struct place *place, mode_t like);
int cover_with_clone(struct applier *a, struct place *place, int tree);
#define MOUNT_IDENTITY 64
int mount_identity(int fd, char text[MOUNT_IDENTITY]);
int attach(struct applier *a, int tree, struct place *place, int target);
int attach_new(struct applier *a, int mount, uint64_t attributes, const char *path);

/* propagation.c */
int stays_inside(struct applier *a, const struct place *place, int target);

/* tmpfs.c */
int op_tmpfs(struct applier *a, struct op *op);
int op_tmpfs_dir(struct applier *a, struct op *op);
int op_tmpfs_file(struct applier *a, struct op *op);
int op_attach(struct applier *a, struct op *op);
/* A detached tmpfs of `size` bytes, mode 0555; -1 and errno. `label`: every inode's, for SELinux; "": none. fsconfig(2)
 * takes 255 bytes. */
int make_tmpfs(const char *source, uint32_t size, uint32_t inodes, const char *label);
bool in_own_tmpfs(int fd);
int undo_content(struct place *place, const char *data);

/* ledger.c */
int op_ledger(struct applier *a, struct op *op);

/* links.c, cachefile.c */
#define LINK_TEMPORARY ".nvc-link-%.200s" /* beside a link, while it is replaced */
int op_symlink(struct applier *a, struct op *op);
int link_replace(struct place *place, const char *text);
#define CACHE_TEMPORARY ".nvc-ld.so.cache" /* the new loader cache, then the old one */
int op_ldcache(struct applier *a, struct op *op);
int undo_exchange(struct place *place, const char *data);

/* undo.c: kinds of records, each written before its effect. */
#define RECORD_FILE 'F'      /* an empty file was made at path */
#define RECORD_DIRECTORY 'D' /* a directory was made */
#define RECORD_LINK 'L'      /* a link was made; data: its text */
#define RECORD_RELINK 'R'    /* a link was replaced; data: new text, newline, old text */
#define RECORD_MOUNT 'M'     /* something was mounted; data: device:inode:mount in hex */
#define RECORD_TEMPORARY 'T' /* a temporary file was made */
#define RECORD_PLACE 'P'     /* no effect: path is the rootfs, as the host calls it */
#define RECORD_KEPT 'K' /* no effect: what is before it was all done, and is kept for whoever undoes it */
#define RECORD_EXCHANGE                                                                                     \
    'X' /* the loader cache was replaced; data: `-` if there was none, else `+`, and the new one */
#define RECORD_CONTENT                                                                                      \
    'C' /* a file in a tmpfs of nvc changed; data: `+` and what it held, or `-` for no file */
int record(struct applier *a, char kind, const char *path, const char *data);
void withdraw(struct applier *a, size_t size);
int mounts_are_there(struct applier *a);
unsigned undo_records(struct applier *a, const char *bytes, size_t size);
