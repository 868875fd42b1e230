/* Opens what may never answer. The kernel waits there in a way that only a fatal signal ends (TASK_KILLABLE). So a
 * child does it, which shares memory and descriptors with the caller: no page is copied, and it can be killed. */
#include "look.h"
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STACK (32 << 10)
#define ENDS_WITHIN 1000 /* ms that a killed child may take */

/* Outlives the caller's patience where the child does: it may still write here. */
struct work {
    _Alignas(16) char stack[STACK];
    atomic_int done;
    int count;
    struct nvc_look asks[];
};

static void look(struct nvc_look *ask)
{
    int fd = open(ask->path, ask->flags | O_CLOEXEC);
    if (fd < 0 || ask->size < 0) {
        ask->result = fd < 0 ? -errno : fd;
        return;
    }
    ssize_t got = read(fd, ask->data, (size_t)ask->size);
    ask->result = got < 0 ? -errno : (int)got;
    close(fd);
}

static int child(void *argument)
{
    struct work *work = argument;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < work->count; i++) {
        look(&work->asks[i]);
        atomic_store(&work->done, i + 1);
    }
    _exit(0);
}

static long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Whether the child ended in time. Only the clock counts: both use the same errno. */
static int ends(int pidfd, int timeout_ms)
{
    struct pollfd poll_fd = {.fd = pidfd, .events = POLLIN};
    long end = now_ms() + timeout_ms;
    long left = timeout_ms;
    int found;
    while ((found = poll(&poll_fd, 1, (int)left)) <= 0 && (left = end - now_ms()) > 0)
        ;
    return found > 0;
}

int nvc_look(struct nvc_look *asks, int count, int timeout_ms)
{
    if (count <= 0)
        return 0;
    struct work *work = calloc(1, sizeof(*work) + (size_t)count * sizeof(*asks));
    if (!work)
        return -ENOMEM;
    work->count = count;
    memcpy(work->asks, asks, (size_t)count * sizeof(*asks));
    for (int i = 0; i < count; i++)
        if (work->asks[i].size > NVC_LOOK_DATA)
            work->asks[i].size = NVC_LOOK_DATA;
    int pidfd = -1;
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before); /* no handler of the caller's may run in the child */
    int failed = clone(child, work->stack + STACK, CLONE_VM | CLONE_FILES | CLONE_PIDFD, work, &pidfd) < 0
                     ? errno
                     : 0;
    int gone = failed != 0 || ends(pidfd, timeout_ms);
    if (!gone) {
        nvc_pidfd_send_signal(pidfd, SIGKILL);
        gone = ends(pidfd, ENDS_WITHIN);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        free(work);
        return -failed;
    }
    int done = atomic_load(&work->done);
    memcpy(asks, work->asks, (size_t)done * sizeof(*asks));
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
    int found = poll(&poll_fd, 1, 0);
    return found < 0 ? -errno : found > 0;
}
