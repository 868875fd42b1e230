/* syscall(2), by the numbers with which the shim, the simulated driver and programs wait or are waited for. */
#include "clocks.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <string.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A word that processes share lies at the same place of a page in each of them. Two words that do are one here: who waits
 * on a futex is ready to be woken for nothing. */
static uint64_t key_of_word(uintptr_t word, int operation)
{
    if (operation & FUTEX_PRIVATE_FLAG)
        return (uint64_t)word ^ (uint64_t)(uint32_t)getpid() << 48 ^ 2;
    return (UINT64_C(1) << 63) | (word & 0xfff);
}

static uint64_t futex_due(int operation, const struct timespec *timeout)
{
    if (!timeout)
        return WORLD_NEVER;
    if ((operation & FUTEX_CMD_MASK) == FUTEX_WAIT)
        return world_after(time_ns(timeout));
    return time_of(operation & FUTEX_CLOCK_REALTIME ? CLOCK_REALTIME : CLOCK_MONOTONIC, timeout);
}

static long refuse(int error)
{
    errno = error;
    return -1;
}

static long futex(const long words[6])
{
    _Atomic uint32_t *word = (_Atomic uint32_t *)words[0];
    int operation = (int)words[1], command = operation & FUTEX_CMD_MASK;
    uint64_t key = key_of_word((uintptr_t)word, operation);
    if (command == FUTEX_WAKE || command == FUTEX_WAKE_BITSET) {
        world_wake(key, (uint32_t)words[2]);
        return 0;
    }
    if (command != FUTEX_WAIT && command != FUTEX_WAIT_BITSET)
        return world_call(SYS_futex, words[0], words[1], words[2], words[3], words[4], words[5]);
    const struct timespec *timeout = (const struct timespec *)words[3];
    if (timeout && (timeout->tv_nsec < 0 || timeout->tv_nsec >= 1000000000))
        return refuse(EINVAL);
    if (atomic_load(word) != (uint32_t)words[2])
        return refuse(EAGAIN);
    return world_wait(key, futex_due(operation, timeout), false) == WORLD_TIMEOUT ? refuse(ETIMEDOUT) : 0;
}

WORLD_API long syscall(long number, ...)
{
    va_list list;
    long words[6];
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        words[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_clock_gettime)
        return time_read((clockid_t)words[0], (struct timespec *)words[1]);
    if (!world_self)
        return world_call(number, words[0], words[1], words[2], words[3], words[4], words[5]);
    switch (number) {
    case SYS_futex:
        return futex(words);
    case SYS_nanosleep:
        return nanosleep((const struct timespec *)words[0], (struct timespec *)words[1]);
    case SYS_clock_nanosleep: {
        int result = clock_nanosleep((clockid_t)words[0], (int)words[1], (const struct timespec *)words[2],
                                     (struct timespec *)words[3]);
        return result ? refuse(result) : 0;
    }
    case SYS_sched_yield:
        return sched_yield();
    case SYS_ppoll:
        return ppoll((struct pollfd *)words[0], (nfds_t)words[1], (const struct timespec *)words[2], NULL);
    case SYS_read:
        return read((int)words[0], (void *)words[1], (size_t)words[2]);
    case SYS_write:
        return write((int)words[0], (const void *)words[1], (size_t)words[2]);
    case SYS_recvfrom:
        return recvfrom((int)words[0], (void *)words[1], (size_t)words[2], (int)words[3],
                        (struct sockaddr *)words[4], (socklen_t *)words[5]);
    case SYS_sendto:
        return sendto((int)words[0], (const void *)words[1], (size_t)words[2], (int)words[3],
                      (const struct sockaddr *)words[4], (socklen_t)words[5]);
    case SYS_connect:
        return connect((int)words[0], (const struct sockaddr *)words[1], (socklen_t)words[2]);
    case SYS_close:
        return close((int)words[0]);
    case SYS_getrandom: /* the same each time */
        memset((void *)words[0], 0x5a, (size_t)words[1]);
        return words[1];
    case SYS_exit_group:
        _exit((int)words[0]);
    default:
        return world_call(number, words[0], words[1], words[2], words[3], words[4], words[5]);
    }
}
