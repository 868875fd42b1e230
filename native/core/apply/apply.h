#pragma once
#include <stdint.h>

/* Operations of a program for nvc_apply, in the order in which they are executed. */
#define NVC_OP_BIND 1       /* fd: O_PATH source; target; attributes; flags */
#define NVC_OP_TMPFS 2      /* target; begins a tmpfs, or goes on with one of an earlier run */
#define NVC_OP_TMPFS_DIR 3  /* target relative to the tmpfs */
#define NVC_OP_TMPFS_FILE 4 /* target relative to the tmpfs; first: content */
#define NVC_OP_ATTACH 5     /* attaches the tmpfs begun last; attributes */
#define NVC_OP_SYMLINK 6    /* target; first: text; operand: index + 1 of the bind that it leads to, or 0 */
#define NVC_OP_LDCACHE 7    /* target; first: entries (uint32 flags, soname NUL, path NUL)... */
#define NVC_OP_UNDO 8       /* first: journal of an interrupted run, undone before anything else */
#define NVC_OP_LEDGER 9     /* target: a tmpfs of one file; operand: size; first: label (flags), file */

#define NVC_BIND_DIRECTORY 1 /* source and target are directories */
#define NVC_BIND_INSIDE 2    /* the source is a file of the container's own mounts, not of the host's */

/* One operation: this header, then target, NUL, first, NUL. Packed by Python with struct "<IIiIQII". */
struct nvc_op_header {
    uint32_t kind;
    uint32_t flags;
    int32_t fd;
    uint32_t operand;
    uint64_t attributes; /* MOUNT_ATTR_* */
    uint32_t target_length;
    uint32_t first_length;
};

struct nvc_apply_target {
    int mount_namespace;
    int rootfs;  /* O_PATH directory in that namespace */
    int journal; /* append-only file on the host, or -1 */
    int timeout_ms;
    uint32_t fsuid; /* ids as which files are created: the container's root as the host sees it */
    uint32_t fsgid;
    uint32_t leave; /* 1: others may use this root file system too, so that undoing leaves all names in it */
    uint32_t keep;  /* 1: what undoes the changes stays after success, the journal and an old loader cache */
};

/* What kind of failure a report is of. */
#define NVC_FAILED_OPERATION 1 /* an operation, or what comes before the first one */
#define NVC_FAILED_PROGRAM 2   /* the program is malformed: a bug of the caller */
#define NVC_FAILED_REPAIR 3    /* what an interrupted run left could not be undone */
#define NVC_FAILED_SHARED 4    /* what was to be mounted would appear in other mount namespaces */
#define NVC_FAILED_LOST 5      /* what was mounted is not there any more */

#define NVC_REPORT_TEXT 512
struct nvc_report {
    int32_t error;    /* 0, or the errno of the failure */
    int32_t failure;  /* NVC_FAILED_*, 0 without an error */
    int32_t op;       /* index in the program, or -1 */
    uint32_t changes; /* effects made and kept: 0 when the container was already as wanted */
    uint32_t undo_failures;
    char step[64];
    char path[NVC_REPORT_TEXT];
    char warnings[2048]; /* lines */
};

/* Executes a program in the target's mount namespace: forks a child that enters it, in which nothing but this
 * code runs, and waits for its report. Returns 0 when a report was received (look at report->error), else
 * -errno: -ETIMEDOUT, -ECHILD when the child died without a report. */
int nvc_apply(const uint8_t *program, uint64_t size, const struct nvc_apply_target *target,
              struct nvc_report *report);

/* Keeps of this process's capabilities (a bit mask) those of `kept` that it has, and none that is inheritable; -errno.
 * The bounding set is reduced to `bounding`. */
int nvc_capset(uint64_t kept);
int nvc_capbset_keep(uint64_t bounding);
int nvc_capget(uint64_t *effective, uint64_t *permitted);
