#include "clock.h"

#include "place.h"

#include <stdlib.h>
#include <string.h>

enum { FRESH_NS = 1000000000, TEXT = 256 };

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

/* A child of fork() has its parent's, until it can read its own. */
static _Atomic int64_t ahead;

static ssize_t read_link(const char *path, char text[TEXT])
{
    return syscall(SYS_readlinkat, AT_FDCWD, path, text, (size_t)TEXT);
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

/* Nanoseconds that this process's clock is ahead of the host's, as time_namespaces(7) has it; `known` where that
 * cannot be read, as in another root. The file is of the namespace that children will be in: the process's own too,
 * unless it has just asked for another one. */
static int64_t read_ahead(int64_t known)
{
    char own[TEXT], children[TEXT], text[TEXT + 1];
    ssize_t length = read_link("/proc/self/ns/time", own);
    if (length <= 0 || read_link("/proc/self/ns/time_for_children", children) != length ||
        memcmp(own, children, (size_t)length) != 0)
        return known;
    int fd = file_open("/proc/self/timens_offsets", O_RDONLY);
    if (fd < 0)
        return known;
    length = file_read(fd, text, TEXT, 0);
    file_close(fd);
    text[length > 0 ? length : 0] = '\0';
    const char *at = strncmp(text, "monotonic ", 10) == 0 ? text + 10 : "";
    int64_t seconds = number_at(&at), nanoseconds = number_at(&at);
    return seconds < INT32_MAX && seconds > INT32_MIN ? seconds * 1000000000 + nanoseconds : known;
}

uint64_t clock_of_host(uint64_t at)
{
    struct process *in = process();
    if (!in)
        return at;
    /* Now and then: a process that is restored from a checkpoint gets a namespace in which its clock goes on. */
    uint64_t due = atomic_load_explicit(&in->clock_due, memory_order_relaxed);
    if (at >= due || due - at > 2 * (uint64_t)FRESH_NS) {
        int64_t known = atomic_load_explicit(&ahead, memory_order_relaxed);
        atomic_store_explicit(&ahead, read_ahead(known), memory_order_relaxed);
        atomic_store_explicit(&in->clock_due, at + FRESH_NS, memory_order_relaxed);
    }
    return at - (uint64_t)atomic_load_explicit(&ahead, memory_order_relaxed);
}
