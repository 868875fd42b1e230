/* Clocks of a process, and the functions that stand behind those of this library. */
#pragma once

#include "world.h"

#include <dlfcn.h>
#include <time.h>

/* The function of this name that would have been called without this library. */
#define REAL(name)                                                                                          \
    ({                                                                                                      \
        static __typeof__(&name) real_;                                                                     \
        if (!real_)                                                                                         \
            *(void **)&real_ = dlsym(RTLD_NEXT, #name);                                                     \
        real_;                                                                                              \
    })

/* The world's time at a moment of one of this process's clocks. */
uint64_t time_of(clockid_t clock, const struct timespec *at);

/* As clock_gettime(2), whatever else is preloaded. */
int time_read(clockid_t clock, struct timespec *out);

static inline uint64_t time_ns(const struct timespec *at)
{
    return (uint64_t)at->tv_sec * 1000000000 + (uint64_t)at->tv_nsec;
}
