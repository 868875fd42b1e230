/* CLOCK_MONOTONIC as every process of a container has it. */
#include "place.h"
#include "process.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FRESH_NS = 1000000000, TEXT = 256 };

#define HOST "time:[4026531834]" /* the host's time namespace, on all kernels that have them */

enum { UNKNOWN, LIBC, REPLACED };

/* A preloaded library can have clocks of its own, which run ten times as fast, such as libfaketime's. The kernel is asked
 * then, which takes longer. Nobody has a qsort of his own. */
static int find_source(_Atomic int *source)
{
    int found = place_is_same((uintptr_t)clock_gettime, (uintptr_t)qsort) ? LIBC : REPLACED;
    atomic_store_explicit(source, found, memory_order_relaxed);
    return found;
}

uint64_t now_ns(clockid_t clock)
{
    static _Atomic int source;
    struct timespec now;
    int known = atomic_load_explicit(&source, memory_order_relaxed);
    if (__builtin_expect(known == UNKNOWN, 0))
        known = find_source(&source);
    if (known == LIBC)
        clock_gettime(clock, &now);
    else
        syscall(SYS_clock_gettime, clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Of a namespace: what the link says. Empty: it cannot be read. `missing`: the kernel has no such namespaces. */
static void read_name(char text[TEXT], bool *missing)
{
    /* A thread's own entry is there when the process's first thread has ended, too. */
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, "/proc/thread-self/ns/time", text, (size_t)TEXT - 1);
    *missing = length < 0 && errno == ENOENT && access("/proc/thread-self/ns", F_OK) == 0;
    text[length > 0 ? length : 0] = '\0';
}

/* Without strtoll, which newer glibc has under a name of its own. */
static int64_t number_at(const char **at)
{
    int64_t value = 0;
    while (**at == ' ')
        ++*at;
    bool negative = **at == '-';
    *at += negative;
    for (int digits = 0; **at >= '0' && **at <= '9' && digits < 18; digits++)
        value = value * 10 + *(*at)++ - '0';
    return negative ? -value : value;
}

/* As time_namespaces(7) has it. */
static bool read_offsets(int64_t *out)
{
    char text[TEXT];
    int fd = file_open("/proc/self/timens_offsets", O_RDONLY);
    ssize_t length = fd >= 0 ? file_read(fd, text, TEXT - 1, 0) : 0;
    if (fd >= 0)
        file_close(fd);
    text[length > 0 ? length : 0] = '\0';
    if (strncmp(text, "monotonic ", 10) != 0)
        return false;
    const char *at = text + 10;
    int64_t seconds = number_at(&at), nanoseconds = number_at(&at);
    if (seconds >= INT32_MAX || seconds <= INT32_MIN)
        return false;
    *out = seconds * 1000000000 + nanoseconds;
    return true;
}

/* False: it was never known. Once it was, it stays known where it cannot be read, as in another root. */
static bool find_ahead(struct process *in)
{
    char own[TEXT];
    bool missing;
    int64_t found = 0;
    read_name(own, &missing);
    if (missing || strcmp(own, HOST) == 0 || (*own && read_offsets(&found))) {
        atomic_store(&in->clock_ahead, found);
        atomic_store(&in->clock_known, true);
    }
    return atomic_load(&in->clock_known);
}

bool clock_is_known(void)
{
    struct process *in = process();
    return in && (atomic_load(&in->clock_known) || find_ahead(in));
}

uint64_t clock_of_host(uint64_t at)
{
    struct process *in = process();
    if (!in)
        return at;
    /* Now and then: a process that is restored from a checkpoint gets a namespace in which its clock goes on. */
    uint64_t due = atomic_load_explicit(&in->clock_due, memory_order_acquire);
    if (at >= due || due - at > 2 * (uint64_t)FRESH_NS) {
        find_ahead(in);
        atomic_store_explicit(&in->clock_due, at + FRESH_NS, memory_order_release);
    }
    return at - (uint64_t)atomic_load_explicit(&in->clock_ahead, memory_order_relaxed);
}
