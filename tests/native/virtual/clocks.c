/* Clocks and sleeps. */
#include "clocks.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

enum { TICK_NS = 4000000 }; /* of the coarse clocks */

/* What the kernel adds to clocks in this process's time namespace, time_namespaces(7). */
static int64_t offset_of(const char *name)
{
    char text[256] = "";
    int fd = (int)world_call(SYS_openat, AT_FDCWD, "/proc/self/timens_offsets", O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    world_call(SYS_read, fd, text, sizeof(text) - 1);
    world_call(SYS_close, fd);
    const char *at = strstr(text, name);
    return at ? strtoll(at + strlen(name), NULL, 10) * 1000000000 : 0;
}

static int64_t ahead(clockid_t clock)
{
    static int64_t monotonic, boot;
    static bool known;
    if (!known) {
        monotonic = offset_of("monotonic");
        boot = offset_of("boottime");
        known = true;
    }
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI)
        return world->wall;
    return clock == CLOCK_BOOTTIME ? boot : monotonic;
}

uint64_t time_of(clockid_t clock, const struct timespec *at)
{
    int64_t time = (int64_t)time_ns(at) - ahead(clock);
    return time > 0 ? (uint64_t)time : 0;
}

static bool is_ours(clockid_t clock)
{
    return world && (clock == CLOCK_REALTIME || clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_RAW ||
                     clock == CLOCK_REALTIME_COARSE || clock == CLOCK_MONOTONIC_COARSE ||
                     clock == CLOCK_BOOTTIME || clock == CLOCK_TAI);
}

int time_read(clockid_t clock, struct timespec *out)
{
    if (!is_ours(clock))
        return (int)world_call(SYS_clock_gettime, clock, out);
    if (world_self)
        world_read();
    uint64_t now = world_self ? world_self->time : atomic_load(&world->now);
    now += (uint64_t)ahead(clock);
    if (clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_REALTIME_COARSE)
        now -= now % TICK_NS;
    *out = (struct timespec){.tv_sec = (time_t)(now / 1000000000), .tv_nsec = (long)(now % 1000000000)};
    return 0;
}

WORLD_API int clock_gettime(clockid_t clock, struct timespec *out)
{
    return time_read(clock, out);
}

WORLD_API int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    time_read(CLOCK_REALTIME, &now);
    *out = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return 0;
}

WORLD_API time_t time(time_t *out)
{
    struct timespec now;
    time_read(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}

WORLD_API int timespec_get(struct timespec *out, int base)
{
    return base == TIME_UTC && time_read(CLOCK_REALTIME, out) == 0 ? base : 0;
}

/* 0, or EINTR with what is left. */
static int sleep_until(uint64_t due, struct timespec *left)
{
    if (world_wait(0, due, false) != WORLD_INTERRUPTED)
        return 0;
    uint64_t rest = due > world_self->time ? due - world_self->time : 0;
    if (left)
        *left =
            (struct timespec){.tv_sec = (time_t)(rest / 1000000000), .tv_nsec = (long)(rest % 1000000000)};
    return EINTR;
}

static bool is_bad(const struct timespec *at)
{
    return at->tv_sec < 0 || at->tv_nsec < 0 || at->tv_nsec >= 1000000000;
}

WORLD_API int clock_nanosleep(clockid_t clock, int flags, const struct timespec *wanted,
                              struct timespec *left)
{
    if (!world_self)
        return REAL(clock_nanosleep)(clock, flags, wanted, left);
    if (is_bad(wanted))
        return EINVAL;
    return flags & TIMER_ABSTIME ? sleep_until(time_of(clock, wanted), NULL)
                                 : sleep_until(world_after(time_ns(wanted)), left);
}

WORLD_API int nanosleep(const struct timespec *wanted, struct timespec *left)
{
    int result = clock_nanosleep(CLOCK_MONOTONIC, 0, wanted, left);
    if (result == 0)
        return 0;
    errno = result;
    return -1;
}

WORLD_API int usleep(useconds_t us)
{
    struct timespec wanted = {.tv_sec = us / 1000000, .tv_nsec = (long)(us % 1000000) * 1000};
    return nanosleep(&wanted, NULL);
}

WORLD_API unsigned int sleep(unsigned int seconds)
{
    struct timespec wanted = {.tv_sec = seconds}, left = {0};
    return nanosleep(&wanted, &left) == 0 ? 0 : (unsigned int)left.tv_sec + (left.tv_nsec > 0);
}

WORLD_API int sched_yield(void)
{
    if (!world_self)
        return (int)world_call(SYS_sched_yield);
    world_spend(WORLD_YIELD_NS);
    return 0;
}
