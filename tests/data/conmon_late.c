/* For LD_PRELOAD of conmon, whose main loop is late then, as on a busy machine: podman connects and starts the
 * container after conmon has asked which descriptors are ready; conmon looks for ended processes when it has ended. */
#include <dlfcn.h>
#include <poll.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char said[64];
static size_t size;
static int to;

static ssize_t next_write(int fd, const void *bytes, size_t count)
{
    return ((ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write"))(fd, bytes, count);
}

/* What tells podman the container's process, and that it may connect, is kept back. */
ssize_t write(int fd, const void *bytes, size_t count)
{
    static const char first[] = "{\"data\":";

    if (size || count > sizeof(said) || count < sizeof(first) || memcmp(bytes, first, sizeof(first) - 1))
        return next_write(fd, bytes, count);
    memcpy(said, bytes, count);
    size = count;
    to = fd;
    return (ssize_t)count;
}

int poll(struct pollfd *fds, nfds_t count, int timeout)
{
    static int told;
    int ready = ((int (*)(struct pollfd *, nfds_t, int))dlsym(RTLD_NEXT, "poll"))(fds, count, timeout);

    if (size && !told++)
        next_write(to, said, size);
    return ready;
}

pid_t waitpid(pid_t pid, int *status, int options)
{
    static int looked;
    siginfo_t ended;

    if ((options & WNOHANG) && size && !looked++)
        waitid(P_ALL, 0, &ended, WEXITED | WNOWAIT);
    return ((pid_t(*)(pid_t, int *, int))dlsym(RTLD_NEXT, "waitpid"))(pid, status, options);
}
