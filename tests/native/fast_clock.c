/* To be preloaded: the shim's monotonic clocks run ten times as fast, as with libfaketime, where it asks libc for them. The
 * program that measures it has to know how much time has passed. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static uint64_t nanoseconds(const struct timespec *at)
{
    return (uint64_t)at->tv_sec * 1000000000 + (uint64_t)at->tv_nsec;
}

static bool is_shim(const void *caller)
{
    Dl_info found;
    const char *name = dladdr(caller, &found) ? strrchr(found.dli_fname, '/') : NULL;
    return name && strncmp(name, "/libcuda.so", 11) == 0;
}

int clock_gettime(clockid_t clock, struct timespec *at)
{
    static uint64_t first;
    int result = (int)syscall(SYS_clock_gettime, clock, at);
    if (result == 0 && clock != CLOCK_REALTIME && is_shim(__builtin_return_address(0))) {
        first = first ? first : nanoseconds(at);
        uint64_t now = first + (nanoseconds(at) - first) * 10;
        *at = (struct timespec){(time_t)(now / 1000000000), (long)(now % 1000000000)};
    }
    return result;
}
