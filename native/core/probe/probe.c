/* The NVML probe: a forked child without rights that loads the driver's library, answers once and exits. Here is what it
 * gives up before it loads the vendor's code. nvc/kernel/probe.py forks it. */
#include "_files.h"
#include "apply.h"
#include "probe.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ANSWER = 3, ROOT = 4, FIRST_FREE = 10 };

void nvc_probe_signals(int blocked)
{
    static sigset_t before;
    struct sigaction child;
    sigset_t all;

    if (!blocked) {
        sigprocmask(SIG_SETMASK, &before, NULL);
        return;
    }
    if (sigaction(SIGCHLD, NULL, &child) == 0 && child.sa_handler == SIG_IGN) {
        child.sa_handler = SIG_DFL;
        sigaction(SIGCHLD, &child, NULL);
    }
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
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

#if defined(__x86_64__)
#define NATIVE_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define NATIVE_ARCH AUDIT_ARCH_AARCH64
#else
#error "x86_64 and aarch64 only"
#endif

/* NVML of the driver root must run on this process's libc, so what belongs to that libc comes from here too. */
static void preload_libc(void)
{
    static const char *const names[] = {
        "libm.so.6",     "librt.so.1", "libpthread.so.0", "libdl.so.2",
#ifdef __aarch64__
        "libgcc_s.so.1",
#endif
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        dlopen(names[i], RTLD_NOW | RTLD_GLOBAL);
}

static int enter_root(int root)
{
    preload_libc();
    if (fchdir(root) < 0)
        return -1;
    if (chroot(".") < 0) {
        /* Without the right, a user namespace of our own lends it; ids and device permissions stay. */
        if (errno != EPERM || unshare(CLONE_NEWUSER) < 0 || chroot(".") < 0)
            return -1;
    }
    return close(root);
}

static int limit(int resource, rlim_t value)
{
    struct rlimit bound;

    if (getrlimit(resource, &bound) < 0)
        return -1;
    if (bound.rlim_max > value)
        bound.rlim_max = value;
    bound.rlim_cur = bound.rlim_max;
    return setrlimit(resource, &bound);
}

/* `lenient`: in a user namespace the overflow ids may be unmapped and groups may be fixed. */
static int drop_ids(const struct nvc_probe_options *options)
{
    int lenient = options->ids == NVC_PROBE_IDS_TRY;

    if (options->ids == NVC_PROBE_IDS_KEEP || geteuid() != 0)
        return 0;
    if (setgroups(0, NULL) < 0 && !lenient)
        return -1;
    if (setresgid(options->gid, options->gid, options->gid) < 0 && !lenient)
        return -1;
    if (setresuid(options->uid, options->uid, options->uid) < 0 && !lenient)
        return -1;
    return 0;
}

/* All, or all but `kept`, which the process has already or does without. */
static int drop_capabilities(uint64_t kept)
{
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    int result = nvc_capset(kept);
    errno = -result;
    return result;
}

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define ANSWER_WITH(value) BPF_STMT(BPF_RET | BPF_K, value)
#define REFUSE ANSWER_WITH(SECCOMP_RET_ERRNO | EPERM)
#define REFUSE_CALL(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), REFUSE

static int filter(void)
{
    /* NVML starts nvidia-modprobe when a node is missing; without rights that cannot help, and a process
     * made here could outlive us and keep our descriptors. Threads are allowed. */
    struct sock_filter code[] = {
        LOAD(arch),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NATIVE_ARCH, 1, 0),
        ANSWER_WITH(SECCOMP_RET_KILL_PROCESS),
        LOAD(nr),
#ifdef __x86_64__
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1), /* the x32 numbers */
        REFUSE,
        REFUSE_CALL(fork),
        REFUSE_CALL(vfork),
#endif
        REFUSE_CALL(execve),
        REFUSE_CALL(execveat),
        REFUSE_CALL(unshare),
        REFUSE_CALL(setns),
        REFUSE_CALL(ptrace),
        REFUSE_CALL(process_vm_readv),
        REFUSE_CALL(process_vm_writev),
        REFUSE_CALL(kill),
        REFUSE_CALL(tkill),
        REFUSE_CALL(rt_sigqueueinfo),
        REFUSE_CALL(rt_tgsigqueueinfo),
        REFUSE_CALL(pidfd_send_signal),
        REFUSE_CALL(add_key),
        REFUSE_CALL(request_key),
        REFUSE_CALL(keyctl),
        REFUSE_CALL(bpf),
        REFUSE_CALL(perf_event_open),
        REFUSE_CALL(userfaultfd),
        REFUSE_CALL(io_uring_setup),
        /* Its flags lie in memory that a filter cannot read; libc falls back to clone. */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
        ANSWER_WITH(SECCOMP_RET_ERRNO | ENOSYS),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4),
        LOAD(args[0]),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 0, 1),
        ANSWER_WITH(SECCOMP_RET_ALLOW),
        REFUSE,
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 4), /* it dies with its parent */
        LOAD(args[0]),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PR_SET_PDEATHSIG, 0, 1),
        REFUSE,
        ANSWER_WITH(SECCOMP_RET_ALLOW),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_tgkill, 0, 3), /* abort(3) signals itself */
        LOAD(args[0]),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)getpid(), 1, 0),
        REFUSE,
        ANSWER_WITH(SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof(code) / sizeof(code[0]), .filter = code};

    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) < 0 ? -errno : 0;
}

int nvc_probe_confine(const struct nvc_probe_options *options, int stream, int parent, const char **step)
{
    int root = options->root;

    reset_signals();
    prctl(PR_SET_NAME, "nvc:[probe]");
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* set again later: a change of credentials clears it */
    *step = "arrange descriptors";
    if (arrange_descriptors(stream, &root) < 0) {
        int error = errno;
        if (fcntl(stream, F_GETFD) >= 0)
            dup2(stream, ANSWER);
        return error;
    }
    *step = "limit resources";
    if (limit(RLIMIT_CORE, 0) < 0 || limit(RLIMIT_AS, options->memory) < 0 ||
        limit(RLIMIT_CPU, options->cpu) < 0)
        goto failed;
    *step = "clear environment";
    if (clearenv() != 0)
        goto failed;
    *step = "chroot";
    if (root >= 0 && enter_root(root) < 0)
        goto failed;
    *step = "change directory";
    if (chdir("/") < 0)
        goto failed;
    nvc_capbset_keep(
        0); /* needs CAP_SETPCAP, which goes with the ids; without it no_new_privs does the same */
    *step = "drop ids";
    if (drop_ids(options) < 0)
        goto failed;
    *step = "drop capabilities";
    if (drop_capabilities(options->limits ? 1u << CAP_SYS_ADMIN : 0) < 0)
        goto failed;
    *step = "set no_new_privs";
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        goto failed;
    /* The kernel resets the death signal on a change of credentials, so it is set after the last one; the parent may
     * have died before. The filter then keeps it. */
    *step = "follow the parent";
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
        goto failed;
    if (getppid() != parent)
        _exit(1);
    *step = "filter system calls";
    errno = -filter();
    if (errno != 0 && errno != EINVAL) /* EINVAL: a kernel without filters */
        goto failed;
    return 0;
failed:
    return errno ? errno : EPERM;
}
