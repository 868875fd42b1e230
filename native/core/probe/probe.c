/* The NVML probe: a forked child without rights that loads the driver's library, answers once and exits.
 *
 * From fork to _exit nothing of Python runs: after chroot a lazy import would execute a file of the driver
 * root. The parent is single-threaded, or else only ever risks the child (bounded by the caller's deadline).
 */
#include "_files.h"
#include "_probe.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ANSWER = 3, ROOT = 4, FIRST_FREE = 10 };

_Static_assert(sizeof(struct nvc_probe_mig) == 116, "layout of nvc/discovery/nvml/wire.py");
_Static_assert(sizeof(struct nvc_probe_gpu) == 248 + NVC_PROBE_MAX_MIG * 116,
               "layout of nvc/discovery/nvml/wire.py");
_Static_assert(sizeof(struct nvc_probe_frame) == 736, "layout of nvc/discovery/nvml/wire.py");
_Static_assert(sizeof(struct nvc_probe_limit) == 112, "layout of nvc/discovery/nvml/wire.py");

int nvc_probe_fail(struct nvc_probe_frame *frame, uint32_t status, int code, const char *step,
                   const char *text)
{
    frame->status = status;
    frame->code = code;
    memset(frame->step, 0, sizeof(frame->step));
    memset(frame->text, 0, sizeof(frame->text));
    memcpy(frame->step, step, strnlen(step, sizeof(frame->step) - 1));
    if (text)
        memcpy(frame->text, text, strnlen(text, sizeof(frame->text) - 1));
    return -1;
}

/* The caller's handlers and mask are Python's; an ignored signal would also survive. */
static void reset_signals(void)
{
    struct sigaction plain = {.sa_handler = SIG_DFL};
    sigset_t none;

    for (int number = 1; number < NSIG; number++)
        sigaction(number, &plain, NULL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Leaves the answer's stream, the root if there is one, and /dev/null three times. */
static int arrange_descriptors(int stream, int *root)
{
    int null, kept_root = -1;
    unsigned first = ANSWER + 1;

    stream = fcntl(stream, F_DUPFD, FIRST_FREE);
    if (stream < 0)
        return -1;
    if (*root >= 0) {
        kept_root = fcntl(*root, F_DUPFD, FIRST_FREE);
        if (kept_root < 0)
            return -1;
    }
    if (dup2(stream, ANSWER) < 0)
        return -1;
    null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0)
        return -1;
    for (int fd = 0; fd < ANSWER; fd++)
        if (dup2(null, fd) < 0)
            return -1;
    if (kept_root >= 0) {
        if (dup2(kept_root, ROOT) < 0)
            return -1;
        *root = ROOT;
        first = ROOT + 1;
    }
    return (int)syscall(SYS_close_range, first, ~0U, 0);
}

static _Noreturn void run(const struct nvc_probe_options *given, int stream, pid_t parent)
{
    struct nvc_probe_options options = *given;
    struct {
        struct nvc_probe_frame frame;
        union {
            struct nvc_probe_gpu gpus[NVC_PROBE_MAX_GPUS];
            struct nvc_probe_limit limits[NVC_PROBE_MAX_GPUS];
        };
    } *reply = calloc(1, sizeof(*reply));

    reset_signals();
    prctl(PR_SET_NAME, "nvc:[probe]");
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* set again later: a change of credentials clears it */
    if (!reply)
        _exit(1);
    memcpy(reply->frame.magic, "NVCPROBE", sizeof(reply->frame.magic));
    reply->frame.version = NVC_PROBE_VERSION;
    reply->frame.gpu_size =
        options.limit_count ? sizeof(struct nvc_probe_limit) : sizeof(struct nvc_probe_gpu);
    if (arrange_descriptors(stream, &options.root) < 0) {
        if (fcntl(stream, F_GETFD) >= 0)
            dup2(stream, ANSWER);
        nvc_probe_fail(&reply->frame, NVC_PROBE_CONFINE, errno, "arrange descriptors", NULL);
    } else if (nvc_probe_confine(&options, parent, &reply->frame) == 0) {
        if (options.limit_count)
            nvc_probe_set_limits(&options, &reply->frame, reply->limits);
        else
            nvc_probe_query(options.libraries, &reply->frame, reply->gpus);
    }
    signal(SIGPIPE, SIG_IGN); /* the parent may be gone, or have seen enough */
    write_all(ANSWER, reply, sizeof(reply->frame) + (size_t)reply->frame.gpu_count * reply->frame.gpu_size);
    /* Closed before the exit, which may last: the last user of a GPU shuts it down. No destructor of NVML runs. */
    close(ANSWER);
    _exit(0);
}

int nvc_probe_start(const struct nvc_probe_options *options, int *fd, int *pidfd)
{
    int ends[2], error = 0;
    pid_t pid, parent = getpid();
    struct sigaction child_action;
    sigset_t all, before;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
        return -errno;
    /* An engine may start us with SIGCHLD ignored: then the kernel would reap the probe behind our back. */
    if (sigaction(SIGCHLD, NULL, &child_action) == 0 && child_action.sa_handler == SIG_IGN) {
        child_action.sa_handler = SIG_DFL;
        sigaction(SIGCHLD, &child_action, NULL);
    }
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    pid = fork();
    if (pid == 0)
        run(options, ends[1], parent);
    if (pid < 0)
        error = errno;
    sigprocmask(SIG_SETMASK, &before, NULL);
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return -error;
    }
    *fd = ends[0];
    *pidfd = (int)syscall(SYS_pidfd_open, pid, 0); /* not yet reaped, so surely ours */
    if (*pidfd < 0) {
        error = errno;
        kill(pid, SIGKILL);
        close(ends[0]);
        return -error;
    }
    return pid;
}
