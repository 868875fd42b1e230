/* What the shim says, and only when NVC_VGPU_LOG asks for it: `stderr`, or the absolute path of a file to append to. */
#pragma once

#include <stdatomic.h>

/* Writes one line. errno stays as it is. */
__attribute__((format(printf, 1, 2))) void log_line(const char *format, ...);

/* Says it at most once in the life of the process. */
#define LOG_ONCE(...)                                                                                       \
    do {                                                                                                    \
        static atomic_flag said_ = ATOMIC_FLAG_INIT;                                                        \
        if (!atomic_flag_test_and_set(&said_))                                                              \
            log_line(__VA_ARGS__);                                                                          \
    } while (0)
