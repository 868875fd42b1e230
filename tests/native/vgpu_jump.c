/* Preloaded: the clock of the day jumps, by 31 years with each look at it, forth and back; as by clock_settime(2), which would
 * disturb the whole machine, for no namespace has a clock of the day of its own. */
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t jump(void)
{
    static _Atomic unsigned int looks;
    return looks++ % 2 ? 1000000000 : -1000000000;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI)
        now->tv_sec += jump();
    return result;
}

int gettimeofday(struct timeval *now, void *zone)
{
    int result = (int)syscall(SYS_gettimeofday, now, zone);
    now->tv_sec += jump();
    return result;
}

time_t time(time_t *now)
{
    time_t at = 1800000000 + jump();
    return now ? (*now = at) : at;
}
