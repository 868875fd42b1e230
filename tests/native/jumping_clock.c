/* To be preloaded: clocks that are wrong. JUMP says which and how:
 *   wall       the wall clock is another one at each look, within 30 years
 *   forward    half a second after the first look the shim's monotonic clocks are an hour ahead, for good
 *   back       likewise, an hour behind
 *   fast       the shim's monotonic clocks run ten times as fast, where it asks libc for them
 * The shim alone sees the latter three: the program that measures it has to know how much time has passed. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { HALF_A_SECOND = 500000000, HOUR = 3600 };

#define SECONDS (UINT64_C(30) * 365 * 24 * HOUR)

static uint64_t nanoseconds(const struct timespec *at)
{
    return (uint64_t)at->tv_sec * 1000000000 + (uint64_t)at->tv_nsec;
}

/* xorshift64*, which needs no lock to be wrong enough. */
static time_t any_time(void)
{
    static uint64_t state = 88172645463325252;
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (time_t)(state * UINT64_C(2685821657736338717) % SECONDS);
}

static bool is(const char *wanted)
{
    const char *how = getenv("JUMP");
    return how && strcmp(how, wanted) == 0;
}

static bool is_shim(const void *caller)
{
    Dl_info found;
    const char *name = dladdr(caller, &found) ? strrchr(found.dli_fname, '/') : NULL;
    return name && strncmp(name, "/libcuda.so", 11) == 0;
}

static void jump(clockid_t clock, struct timespec *at, const void *caller)
{
    static uint64_t first;
    bool forward = is("forward");
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || (!forward && !is("back")) ||
        !is_shim(caller))
        return;
    first = first ? first : nanoseconds(at);
    if (nanoseconds(at) > first + HALF_A_SECOND)
        at->tv_sec += forward ? HOUR : -HOUR;
}

/* The shim asks the kernel where it finds that libc's clock was replaced. */
long syscall(long number, ...)
{
    static long (*next)(long, ...);
    long words[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        words[i] = va_arg(list, long);
    va_end(list);
    if (!next)
        next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    long result = next(number, words[0], words[1], words[2], words[3], words[4], words[5]);
    if (number == SYS_clock_gettime && result == 0)
        jump((clockid_t)words[0], (struct timespec *)words[1], __builtin_return_address(0));
    return result;
}

int clock_gettime(clockid_t clock, struct timespec *at)
{
    static uint64_t first;
    int result = (int)syscall(SYS_clock_gettime, clock, at);
    bool wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    if (result == 0 && wall && is("wall"))
        at->tv_sec = any_time();
    if (result == 0 && !wall && is("fast") && is_shim(__builtin_return_address(0))) {
        first = first ? first : nanoseconds(at);
        uint64_t now = first + (nanoseconds(at) - first) * 10;
        *at = (struct timespec){(time_t)(now / 1000000000), (long)(now % 1000000000)};
    }
    return result;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    *at = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}
