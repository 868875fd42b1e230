/* Opens what may never answer. The kernel waits there in a way that only a fatal signal ends (TASK_KILLABLE). So a
 * child does it, which shares memory with the caller: no page is copied, and it can be killed. Its descriptors are its
 * own and end with it. The caller takes those that it wants from the child, which it never waits for: nobody holds
 * the child in an execve(2). */
#include "look.h"
#include "_files.h"
#include "files.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#define STACK (32 << 10)
#define ENDS_WITHIN 1000 /* ms that a child may take to end */

/* Outlives the caller's patience where the child does: it may still write here. */
struct work {
    _Alignas(16) char stack[STACK];
    atomic_int done;
    atomic_int ready; /* the child has done all, and waits until its descriptors were taken */
    atomic_int taken;
    int failed; /* errno of a child that could not begin */
    pid_t caller;
    int number; /* the child's in /proc */
    int count;
    bool wanted; /* there are descriptors to take */
    struct nvc_look asks[];
};

static long futex(atomic_int *word, int what, const struct timespec *timeout)
{
    return syscall(SYS_futex, word, what, what == FUTEX_WAKE_PRIVATE ? 1 : 0, timeout, NULL, 0);
}

static void tell(atomic_int *word)
{
    atomic_store(word, 1);
    futex(word, FUTEX_WAKE_PRIVATE, NULL);
}

static int getfd(int pidfd, int number)
{
    int fd = pidfd < 0 ? pidfd : (int)syscall(SYS_pidfd_getfd, pidfd, number, 0);
    return pidfd >= 0 && fd < 0 ? -errno : fd;
}

static int open_path(const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static void look(struct nvc_look *ask)
{
    int fd = ask->pid ? getfd(nvc_pidfd_open(ask->pid), ask->number) : open_path(ask->path, ask->flags);
    ask->result = fd;
    if (fd < 0 || ask->size < 0)
        return;
    ssize_t got = 0;
    for (ask->result = 0; ask->result < ask->size; ask->result += (int)got) {
        got = read(fd, ask->data + ask->result, (size_t)(ask->size - ask->result));
        if (got <= 0)
            break;
    }
    if (got < 0)
        ask->result = -errno;
    close(fd);
}

static int own_number(void)
{
    char text[16] = "";
    return readlink("/proc/self", text, sizeof(text) - 1) > 0 ? atoi(text) : 0;
}

static int child(void *argument)
{
    struct work *work = argument;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pid_t parent = getppid();
    if (parent && parent != work->caller) /* that has ended before */
        _exit(1);
    if (syscall(SYS_close_range, 0U, ~0U, CLOSE_RANGE_UNSHARE) < 0)
        work->failed = errno;
    for (int i = 0; i < work->count && !work->failed; i++) {
        look(&work->asks[i]);
        atomic_store(&work->done, i + 1);
    }
    if (work->wanted) {
        work->number = own_number();
        tell(&work->ready);
        do
            futex(&work->taken, FUTEX_WAIT_PRIVATE, NULL);
        while (!atomic_load(&work->taken));
    }
    _exit(0);
}

/* Only the clock counts: the child uses the same errno. */
bool ends(int pidfd, int timeout_ms)
{
    struct pollfd poll_fd = {.fd = pidfd, .events = POLLIN};
    int64_t end = now_ms() + timeout_ms, left = timeout_ms;
    int found;
    while ((found = poll(&poll_fd, 1, (int)left)) <= 0 && (left = end - now_ms()) > 0)
        ;
    return found > 0;
}

/* Whether the child is ready in time. Where it is already, the call is made all the same: tests count calls. */
static int is_ready(struct work *work, int timeout_ms)
{
    int64_t end = now_ms() + timeout_ms, left = timeout_ms;
    do {
        struct timespec wait = {.tv_sec = left / 1000, .tv_nsec = left % 1000 * 1000000};
        futex(&work->ready, FUTEX_WAIT_PRIVATE, &wait);
        left = end - now_ms();
    } while (!atomic_load(&work->ready) && left > 0);
    return atomic_load(&work->ready);
}

/* A descriptor of what the child has opened. A failure says nothing of the process that was looked at. */
static int take(const struct work *work, int pidfd, const struct nvc_look *ask)
{
    char path[NVC_LOOK_PATH];
    if (ask->pid)
        return getfd(pidfd, ask->result);
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", work->number, ask->result);
    int fd = open_path(path, ask->flags);
    return fd == -ENOENT || fd == -ESRCH ? -EIO : fd;
}

static struct work *prepared(const struct nvc_look *asks, int count)
{
    size_t size = sizeof(struct work) + (size_t)count * sizeof(*asks);
    size_t room = size;
    for (int i = 0; i < count; i++)
        room += asks[i].size > 0 ? (size_t)asks[i].size : 0;
    struct work *work = calloc(1, room);
    if (!work)
        return NULL;
    work->caller = getpid();
    work->count = count;
    memcpy(work->asks, asks, (size_t)count * sizeof(*asks));
    char *data = (char *)work + size;
    for (int i = 0; i < count; i++) {
        work->wanted |= asks[i].size < 0;
        work->asks[i].data = data;
        data += asks[i].size > 0 ? asks[i].size : 0;
    }
    return work;
}

/* How many were answered, whose results the caller gets. */
static int answers(struct nvc_look *asks, const struct work *work, int pidfd, int answered)
{
    int done = atomic_load(&work->done);
    if (!answered && done == work->count)
        done--; /* just now: too late */
    for (int i = 0; i < done; i++) {
        const struct nvc_look *ask = &work->asks[i];
        asks[i].result = ask->result;
        if (ask->size < 0 && ask->result >= 0)
            asks[i].result = answered ? take(work, pidfd, ask) : -ETIMEDOUT;
        else if (ask->size > 0 && ask->result > 0)
            memcpy(asks[i].data, ask->data, (size_t)ask->result);
    }
    return done;
}

int nvc_look(struct nvc_look *asks, int count, int timeout_ms)
{
    struct work *work = count > 0 ? prepared(asks, count) : NULL;
    if (!work)
        return count > 0 ? -ENOMEM : 0;
    int pidfd = -1;
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before); /* no handler of the caller's may run in the child */
    if (clone(child, work->stack + STACK, CLONE_VM | CLONE_FILES | CLONE_PIDFD, work, &pidfd) < 0) {
        int failed = errno;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        free(work);
        return -failed;
    }
    int answered = work->wanted ? is_ready(work, timeout_ms) : ends(pidfd, timeout_ms);
    int done = answered && work->failed ? -work->failed : answers(asks, work, pidfd, answered);
    tell(&work->taken);
    int gone = ends(pidfd, answered ? ENDS_WITHIN : 0);
    if (!gone) {
        nvc_pidfd_send_signal(pidfd, SIGKILL);
        gone = ends(pidfd, ENDS_WITHIN);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (gone) {
        siginfo_t info;
        while (waitid(P_PIDFD, (id_t)pidfd, &info, WEXITED | __WALL) < 0 && errno == EINTR)
            ;
        free(work);
    }
    close(pidfd);
    return done;
}

int nvc_pidfd_ended(int pidfd)
{
    struct pollfd poll_fd = {.fd = pidfd, .events = POLLIN};
    int found;
    do /* a signal on its way interrupts it, though it does not wait */
        found = poll(&poll_fd, 1, 0);
    while (found < 0 && errno == EINTR);
    return found < 0 ? -errno : found > 0;
}
