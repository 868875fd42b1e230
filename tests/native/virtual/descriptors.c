/* Waits for descriptors, and what others see of descriptors. Who waits looks again, without waiting in the kernel, each time
 * that somebody has done what a descriptor may show: so a message that is sent at one moment comes at that moment. */
#include "clocks.h"
#include "descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FILE_LOCK_NS = 10000 };

/* After a look that found nothing. False: there is no more time, or a signal, which `result` says. */
static bool look_again(uint64_t due, int *result)
{
    *result = 0;
    if (world_self->time >= due)
        return false;
    if (world_wait(0, due, true) != WORLD_INTERRUPTED)
        return true;
    errno = EINTR;
    *result = -1;
    return false;
}

static uint64_t due_in_ms(int timeout)
{
    return timeout < 0 ? WORLD_NEVER : world_after((uint64_t)timeout * 1000000);
}

static int poll_until(struct pollfd *fds, nfds_t count, uint64_t due)
{
    static const struct timespec none;
    for (;;) {
        struct timespec now = none;
        int found = (int)world_call(SYS_ppoll, fds, count, &now, NULL, 0);
        if (found != 0 || !look_again(due, &found))
            return found;
    }
}

WORLD_API int poll(struct pollfd *fds, nfds_t count, int timeout)
{
    return world_self ? poll_until(fds, count, due_in_ms(timeout)) : REAL(poll)(fds, count, timeout);
}

WORLD_API int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
    if (!world_self)
        return REAL(ppoll)(fds, count, timeout, mask);
    return poll_until(fds, count, timeout ? world_after(time_ns(timeout)) : WORLD_NEVER);
}

WORLD_API int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout)
{
    if (!world_self)
        return REAL(epoll_wait)(epoll, events, most, timeout);
    uint64_t due = due_in_ms(timeout);
    for (;;) {
        int found = REAL(epoll_wait)(epoll, events, most, 0);
        if (found != 0 || !look_again(due, &found))
            return found;
    }
}

WORLD_API int epoll_pwait(int epoll, struct epoll_event *events, int most, int timeout, const sigset_t *mask)
{
    return world_self ? epoll_wait(epoll, events, most, timeout)
                      : REAL(epoll_pwait)(epoll, events, most, timeout, mask);
}

static void copy_set(fd_set *to, const fd_set *from)
{
    if (to)
        *to = *from;
}

static int select_until(int count, fd_set *in, fd_set *out, fd_set *other, uint64_t due)
{
    fd_set kept[3];
    copy_set(in ? &kept[0] : NULL, in);
    copy_set(out ? &kept[1] : NULL, out);
    copy_set(other ? &kept[2] : NULL, other);
    for (;;) {
        struct timespec none = {0};
        int found = (int)world_call(SYS_pselect6, count, in, out, other, &none, NULL);
        if (found != 0 || !look_again(due, &found))
            return found;
        copy_set(in, &kept[0]);
        copy_set(out, &kept[1]);
        copy_set(other, &kept[2]);
    }
}

WORLD_API int select(int count, fd_set *in, fd_set *out, fd_set *other, struct timeval *timeout)
{
    if (!world_self)
        return REAL(select)(count, in, out, other, timeout);
    uint64_t ns = timeout ? (uint64_t)timeout->tv_sec * 1000000000 + (uint64_t)timeout->tv_usec * 1000 : 0;
    return select_until(count, in, out, other, timeout ? world_after(ns) : WORLD_NEVER);
}

WORLD_API int pselect(int count, fd_set *in, fd_set *out, fd_set *other, const struct timespec *timeout,
                      const sigset_t *mask)
{
    if (!world_self)
        return REAL(pselect)(count, in, out, other, timeout, mask);
    return select_until(count, in, out, other, timeout ? world_after(time_ns(timeout)) : WORLD_NEVER);
}

bool descriptor_await(int fd, short events)
{
    struct pollfd one = {.fd = fd, .events = events}, now = one;
    struct timespec none = {0};
    if (!world_self || world_call(SYS_ppoll, &now, 1, &none, NULL, 0) != 0 ||
        world_call(SYS_fcntl, fd, F_GETFL, 0) & O_NONBLOCK)
        return true;
    return poll_until(&one, 1, WORLD_NEVER) > 0;
}

long descriptor_seen(long result)
{
    if (world_self && result >= 0)
        world_show();
    return result;
}

WORLD_API ssize_t read(int fd, void *out, size_t size)
{
    return descriptor_await(fd, POLLIN) ? world_call(SYS_read, fd, out, size) : -1;
}

WORLD_API ssize_t recvfrom(int fd, void *out, size_t size, int flags, struct sockaddr *from,
                           socklen_t *length)
{
    return flags & MSG_DONTWAIT || descriptor_await(fd, POLLIN)
               ? world_call(SYS_recvfrom, fd, out, size, flags, from, length)
               : -1;
}

WORLD_API ssize_t recv(int fd, void *out, size_t size, int flags)
{
    return recvfrom(fd, out, size, flags, NULL, NULL);
}

WORLD_API ssize_t recvmsg(int fd, struct msghdr *out, int flags)
{
    return flags & MSG_DONTWAIT || descriptor_await(fd, POLLIN) ? world_call(SYS_recvmsg, fd, out, flags)
                                                                : -1;
}

WORLD_API int accept4(int fd, struct sockaddr *from, socklen_t *length, int flags)
{
    return descriptor_await(fd, POLLIN)
               ? (int)descriptor_seen(world_call(SYS_accept4, fd, from, length, flags))
               : -1;
}

WORLD_API int accept(int fd, struct sockaddr *from, socklen_t *length)
{
    return accept4(fd, from, length, 0);
}

WORLD_API ssize_t write(int fd, const void *from, size_t size)
{
    return descriptor_seen(world_call(SYS_write, fd, from, size));
}

WORLD_API ssize_t writev(int fd, const struct iovec *from, int count)
{
    return descriptor_seen(world_call(SYS_writev, fd, from, count));
}

WORLD_API ssize_t sendto(int fd, const void *from, size_t size, int flags, const struct sockaddr *to,
                         socklen_t length)
{
    return descriptor_seen(world_call(SYS_sendto, fd, from, size, flags, to, length));
}

WORLD_API ssize_t send(int fd, const void *from, size_t size, int flags)
{
    return sendto(fd, from, size, flags, NULL, 0);
}

WORLD_API ssize_t sendmsg(int fd, const struct msghdr *from, int flags)
{
    return descriptor_seen(world_call(SYS_sendmsg, fd, from, flags));
}

WORLD_API int connect(int fd, const struct sockaddr *to, socklen_t length)
{
    return (int)descriptor_seen(world_call(SYS_connect, fd, to, length));
}

WORLD_API int shutdown(int fd, int how)
{
    return (int)descriptor_seen(world_call(SYS_shutdown, fd, how));
}

WORLD_API int close(int fd)
{
    return (int)descriptor_seen(world_call(SYS_close, fd));
}

/* Locks of files are held for moments, in which time may pass. */
static int lock_file(int fd, int command, void *argument)
{
    int once = command == F_SETLKW ? F_SETLK : F_OFD_SETLK;
    for (;;) {
        int result = (int)world_call(SYS_fcntl, fd, once, argument);
        if (result == 0 || (errno != EAGAIN && errno != EACCES))
            return result;
        world_wait(0, world_after(FILE_LOCK_NS), false);
    }
}

WORLD_API int fcntl(int fd, int command, ...)
{
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    if (world_self && (command == F_SETLKW || command == F_OFD_SETLKW))
        return lock_file(fd, command, argument);
    return (int)world_call(SYS_fcntl, fd, command, argument);
}

WORLD_API int fcntl64(int fd, int command, ...)
{
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    return fcntl(fd, command, argument);
}

WORLD_API int flock(int fd, int operation)
{
    while (world_self && !(operation & (LOCK_NB | LOCK_UN))) {
        int result = (int)world_call(SYS_flock, fd, operation | LOCK_NB);
        if (result == 0 || errno != EWOULDBLOCK)
            return result;
        world_wait(0, world_after(FILE_LOCK_NS), false);
    }
    return (int)world_call(SYS_flock, fd, operation);
}
