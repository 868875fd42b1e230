/* The applier: one child that enters the container's mount namespace, executes a program of operations, undoes
 * all of them if one fails, writes one report and exits. Nothing else runs in there: an interpreter would load
 * modules from the container's files as root. */
#include "_apply.h"
#include "files.h"

#include <errno.h>
#include <linux/capability.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define ENDS_MS 1000
#define DONE_NOTHING 3 /* exit status of a child that has undone everything and said so */
#define BIT(capability) (1ULL << (capability))
/* open_tree(CLONE), setns and the change of file-system ids need these; the work inside needs fewer. In a user namespace
 * not all may be permitted. */
#define CAPS_ENTER                                                                                          \
    (BIT(CAP_SYS_ADMIN) | BIT(CAP_SYS_CHROOT) | BIT(CAP_SETUID) | BIT(CAP_SETGID) |                         \
     BIT(CAP_DAC_READ_SEARCH) | BIT(CAP_DAC_OVERRIDE) | BIT(CAP_FOWNER))
#define CAPS_INSIDE (BIT(CAP_SYS_ADMIN) | BIT(CAP_DAC_READ_SEARCH) | BIT(CAP_DAC_OVERRIDE) | BIT(CAP_FOWNER))

int fail(struct applier *a, int error, const char *step, const char *path)
{
    return fail_as(a, NVC_FAILED_OPERATION, error, step, path);
}

int fail_as(struct applier *a, int failure, int error, const char *step, const char *path)
{
    if (a->report->error == 0) {
        a->report->error = error ? error : EIO;
        a->report->failure = failure;
        snprintf(a->report->step, sizeof(a->report->step), "%s", step);
        snprintf(a->report->path, sizeof(a->report->path), "%s", path);
    }
    errno = error;
    return -1;
}

void warn(struct applier *a, const char *text, const char *path)
{
    char *warnings = a->report->warnings;
    size_t used = strlen(warnings);

    snprintf(warnings + used, sizeof(a->report->warnings) - used, "%s: %.300s\n", text, path);
}

/* Reads the packed program; the strings stay where they are. -EPROTO when it is malformed: our own bug. */
static int decode(struct applier *a, const uint8_t *program, uint64_t size)
{
    uint64_t at = 0;

    a->ops = calloc(size / sizeof(struct nvc_op_header) + 1, sizeof(*a->ops));
    if (a->ops == NULL)
        return -ENOMEM;
    while (at < size) {
        struct op *op = &a->ops[a->count];
        if (size - at < sizeof(op->head))
            return -EPROTO;
        memcpy(&op->head, program + at, sizeof(op->head));
        at += sizeof(op->head);
        if (size - at < (uint64_t)op->head.target_length + op->head.first_length + 2)
            return -EPROTO;
        op->target = (const char *)program + at;
        op->first = op->target + op->head.target_length + 1;
        if (op->target[op->head.target_length] != '\0' || op->first[op->head.first_length] != '\0')
            return -EPROTO;
        at += (uint64_t)op->head.target_length + op->head.first_length + 2;
        op->tree = -1;
        a->count++;
    }
    return 0;
}

static int op_undo(struct applier *a, struct op *op)
{
    a->report->undo_failures += undo_records(a, op->first, op->head.first_length);
    if (a->report->undo_failures == 0)
        return 0;
    return fail_as(a, NVC_FAILED_REPAIR, a->undo_error, "repair an interrupted run", a->undo_path);
}

static int (*const WORK[])(struct applier *, struct op *) = {
    [NVC_OP_BIND] = op_bind,           [NVC_OP_TMPFS] = op_tmpfs,
    [NVC_OP_TMPFS_DIR] = op_tmpfs_dir, [NVC_OP_TMPFS_FILE] = op_tmpfs_file,
    [NVC_OP_ATTACH] = op_attach,       [NVC_OP_SYMLINK] = op_symlink,
    [NVC_OP_LDCACHE] = op_ldcache,     [NVC_OP_UNDO] = op_undo,
    [NVC_OP_LEDGER] = op_ledger,
};

static int execute_all(struct applier *a)
{
    for (size_t i = 0; i < a->count; i++) {
        uint32_t kind = a->ops[i].head.kind;
        a->report->op = (int32_t)i;
        if (kind < NVC_OP_BIND || kind > NVC_OP_LEDGER)
            return fail_as(a, NVC_FAILED_PROGRAM, EPROTO, "decode operation", a->ops[i].target);
        if (WORK[kind](a, &a->ops[i]) < 0)
            return -1;
    }
    a->report->op = -1;
    return mounts_are_there(a);
}

static int enter(struct applier *a)
{
    const struct nvc_apply_target *target = a->target;

    a->descriptors = open("/proc/self/fd", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (a->descriptors < 0)
        return fail(a, errno, "open own descriptors", "/proc/self/fd");
    if (target->mount_namespace >= 0 && setns(target->mount_namespace, CLONE_NEWNS) < 0)
        return fail(a, errno, "enter mount namespace", "");
    /* A tmpfs or procfs of a user namespace has no inode for ids that the namespace does not map: creating as
     * the host's root gives EOVERFLOW there (user_namespaces(7)). The change also clears capabilities that
     * concern files (capabilities(7)), so they are raised again below. */
    setfsgid(target->fsgid);
    setfsuid(target->fsuid);
    if ((uint32_t)setfsuid((uid_t)-1) != target->fsuid)
        return fail(a, EPERM, "switch to the container's root id", "");
    if (nvc_capset(CAPS_INSIDE) < 0)
        return fail(a, EPERM, "drop capabilities", "");
    return 0;
}

static void run(struct applier *a)
{
    nvc_capset(CAPS_ENTER);
    if (clone_sources(a) < 0)
        return;
    a->report->op = -1;
    if (enter(a) < 0)
        return;
    /* A credential change resets it (prctl(2)), so it comes after; the caller checks for its own death. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (execute_all(a) < 0) {
        a->report->undo_failures += undo_records(a, a->records.bytes, a->records.size);
        a->report->changes = 0;
    }
}

/* The report is sent: there is nothing to undo any more, so that what was kept for it can go. */
static void commit(struct applier *a)
{
    if (a->target->keep)
        return;
    if (a->target->journal >= 0)
        (void)!ftruncate(a->target->journal, 0); /* the caller removes it anyway */
    /* Once more where it could not be: what is done now cannot fail any more, and the next run only removes it. */
    if (a->old_cache >= 0 && unlinkat(a->old_cache, CACHE_TEMPORARY, 0) < 0)
        unlinkat(a->old_cache, CACHE_TEMPORARY, 0);
}

/* Instead of an applier that was killed after its report: nothing else of what it had to do can be left. */
static void finish(struct applier *a)
{
    struct place place;

    nvc_capset(CAPS_ENTER);
    if (a->target->keep || enter(a) < 0)
        return;
    for (size_t i = 0; i < a->count; i++) {
        if (a->ops[i].head.kind != NVC_OP_LDCACHE || place_find(a, a->ops[i].target, true, true, &place) < 0)
            continue;
        place_remove(&place, CACHE_TEMPORARY, 0);
        place_close(&place);
    }
}

static void child(struct applier *a, bool again, int out, pid_t parent)
{
    prctl(PR_SET_NAME, "nvc:[apply]");
    /* The host's root directory and more is open here. In a shared pid namespace a container whose capabilities
     * include the few that are kept below could take it from /proc/PID/fd (ptrace(2), access mode checking). */
    prctl(PR_SET_DUMPABLE, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    signal(SIGPIPE, SIG_IGN);
    umask(022);
    if (again)
        finish(a);
    else
        run(a);
    if (!write_all(out, a->report, sizeof(*a->report)))
        _exit(1);
    if (a->report->error != 0)
        _exit(DONE_NOTHING);
    commit(a);
    _exit(0);
}

/* Reads the report, which is written at once (pipe(7), PIPE_BUF). 0, -ETIMEDOUT, or -ECHILD when there is none. */
static int read_report(int in, int timeout_ms, struct nvc_report *report)
{
    int64_t deadline = now_ms() + timeout_ms;

    _Static_assert(sizeof(*report) <= PIPE_BUF, "a report is whole or missing");
    for (;;) {
        int64_t left = deadline - now_ms();
        struct pollfd ready = {.fd = in, .events = POLLIN};
        int polled = poll(&ready, 1, left > 0 ? (int)left : 0);
        if (polled < 0 && errno == EINTR)
            continue;
        if (polled <= 0)
            return -ETIMEDOUT;
        ssize_t got = read(in, report, sizeof(*report));
        if (got < 0 && errno == EINTR)
            continue;
        return got == sizeof(*report) ? 0 : -ECHILD;
    }
}

/* Whether a child that was killed has ended. No signal ends who waits for a server of FUSE that has read the request:
 * a container's may never answer, and the child does nothing more then. */
static bool has_ended(pid_t pid)
{
    int end = nvc_pidfd_open(pid);
    bool ended = end < 0 || ends(end, ENDS_MS);

    shut(end);
    return ended;
}

/* The child's report, and its end; never much later than the timeout. */
static int receive(int in, pid_t pid, int timeout_ms, struct nvc_report *report, bool *killed)
{
    /* -1, neither an exit nor a signal: where SIGCHLD is ignored nobody is told more (waitpid(2), ECHILD). */
    int status = -1, result = read_report(in, timeout_ms, report);

    if (result < 0 && kill(pid, SIGKILL) == 0 && !has_ended(pid))
        return result;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    /* What it said is lost, but not what it did. */
    if (result == -ECHILD && WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    /* A child that had just reported commits, as far as it is not killed. */
    if (result < 0 && read_report(in, 0, report) == 0)
        result = 0;
    *killed = result == 0 && !report->error && WIFSIGNALED(status);
    return result;
}

/* In a process of its own. `killed`: after it had said that all is done. */
static int run_child(struct applier *a, bool again, bool *killed)
{
    pid_t parent = getpid();
    int channel[2];

    if (pipe2(channel, O_CLOEXEC) < 0)
        return -errno;
    pid_t pid = fork();
    if (pid == 0) {
        close(channel[0]);
        child(a, again, channel[1], parent);
    }
    int result = pid < 0 ? -errno : 0;
    close(channel[1]);
    if (result == 0)
        result = receive(channel[0], pid, a->target->timeout_ms, a->report, killed);
    close(channel[0]);
    return result;
}

int nvc_apply(const uint8_t *program, uint64_t size, const struct nvc_apply_target *target,
              struct nvc_report *report)
{
    struct applier a = {.target = target,
                        .report = report,
                        .descriptors = -1,
                        .tmpfs = -1,
                        .old_cache = -1,
                        .undo_path = ""};
    struct nvc_report unused = {.op = -1};
    bool killed = false;

    memset(report, 0, sizeof(*report));
    report->op = -1;
    int result = decode(&a, program, size);
    if (result == 0)
        result = run_child(&a, false, &killed);
    if (killed) {
        a.report = &unused;
        run_child(&a, true, &killed);
    }
    free(a.ops);
    return result;
}
