/* Calls of the system in a form that glibc 2.17 has too, and a lock that fork() cannot leave behind held. They are no
 * cancellation points: a thread that ended in one would leave a lock held. */
#pragma once

#include <fcntl.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* fstat(2) without the symbol fstat@GLIBC_2.33. */
static inline bool file_status(int fd, struct stat *out)
{
    return syscall(SYS_fstat, fd, out) == 0;
}

static inline uint64_t least(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

/* Nanoseconds of a clock, whatever a program has in libc's place: see clock.c. */
uint64_t now_ns(clockid_t clock);

/* The host's time at a moment of this process's CLOCK_MONOTONIC, which is another in a time namespace; nanoseconds. */
uint64_t clock_of_host(uint64_t at);

/* Whether that can be told: /proc says it, or has said it before. If not, this process's clock passes for the host's. */
bool clock_is_known(void);

static inline void sleep_us(long microseconds)
{
    syscall(SYS_nanosleep, &(struct timespec){.tv_nsec = microseconds * 1000}, NULL);
}

static inline int file_open(const char *path, int flags)
{
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC | O_NOCTTY, 0644);
}

static inline void file_close(int fd)
{
    syscall(SYS_close, fd);
}

static inline ssize_t file_read(int fd, void *out, size_t size, uint64_t offset)
{
    return syscall(SYS_pread64, fd, out, size, offset);
}

/* Zero is free, 1 held, 2 held and waited for. Lies in memory that fork() wipes: see process.h. */
struct lock {
    _Atomic uint32_t word;
};

static inline void lock_take(struct lock *lock)
{
    uint32_t seen = 0;
    if (atomic_compare_exchange_strong(&lock->word, &seen, 1))
        return;
    while (atomic_exchange(&lock->word, 2) != 0)
        syscall(SYS_futex, &lock->word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

static inline void lock_drop(struct lock *lock)
{
    if (atomic_exchange(&lock->word, 0) == 2)
        syscall(SYS_futex, &lock->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
