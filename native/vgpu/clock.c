#include "clock.h"

#include "place.h"

#include <errno.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>

enum { FRESH_NS = 1000000000, TEXT = 256, PROC_ROOT = 1 };

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

/* procfs by its root: not what somebody has mounted in its place. */
static int open_proc(void)
{
    struct statfs system;
    struct stat root;
    int fd = file_open("/proc", O_PATH | O_DIRECTORY);
    if (fd < 0 || (syscall(SYS_fstatfs, fd, &system) == 0 && system.f_type == PROC_SUPER_MAGIC &&
                   file_status(fd, &root) && root.st_ino == PROC_ROOT))
        return fd;
    file_close(fd);
    return -1;
}

/* No file that is mounted over one of procfs, where the kernel (5.6) can tell, and a seccomp profile lets it. */
static int open_below(int proc, const char *path, int flags)
{
    struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC), .resolve = RESOLVE_NO_XDEV};
    int fd = (int)syscall(SYS_openat2, proc, path, &how, sizeof(how));
    if (fd < 0 && (errno == ENOSYS || errno == EPERM))
        fd = (int)syscall(SYS_openat, proc, path, flags | O_CLOEXEC);
    return fd;
}

/* Of a namespace: what the link says. Empty: it cannot be read. `missing`: the kernel has no such namespaces. */
static void read_name(int proc, const char *path, char text[TEXT], bool *missing)
{
    int fd = open_below(proc, path, O_PATH | O_NOFOLLOW);
    *missing = fd < 0 && errno == ENOENT;
    ssize_t length = fd >= 0 ? syscall(SYS_readlinkat, fd, "", text, (size_t)TEXT - 1) : 0;
    text[length > 0 ? length : 0] = '\0';
    if (fd >= 0)
        file_close(fd);
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

/* As time_namespaces(7) has it. The file is of the namespace that children will be in: the process's own too, unless it
 * has just asked for another one. */
static bool read_offsets(int proc, int64_t *out)
{
    char text[TEXT];
    int fd = open_below(proc, "self/timens_offsets", O_RDONLY);
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

static bool read_below(int proc, int64_t *out)
{
    char own[TEXT], children[TEXT];
    bool missing, none;
    *out = 0;
    /* A thread's own entry is there when the process's first thread has ended, too. */
    read_name(proc, "thread-self/ns/time", own, &missing);
    if (missing) {
        /* In the procfs of other processes nobody finds himself: then nothing is known. */
        int fd = open_below(proc, "thread-self/ns", O_PATH | O_DIRECTORY);
        if (fd >= 0)
            file_close(fd);
        return fd >= 0;
    }
    if (strcmp(own, HOST) == 0)
        return true;
    read_name(proc, "thread-self/ns/time_for_children", children, &none);
    return *own && strcmp(own, children) == 0 && read_offsets(proc, out);
}

/* False: it was never known. Once it was, it stays known where it cannot be read, as in another root. */
static bool find_ahead(struct process *in)
{
    int64_t found;
    int proc = open_proc();
    if (proc >= 0 && read_below(proc, &found)) {
        atomic_store(&in->clock_ahead, found);
        atomic_store(&in->clock_known, true);
    }
    if (proc >= 0)
        file_close(proc);
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
