/* Binds functions that glibc 2.34 moved into libc.so.6 to their old versions, so that what is built on a new
 * system still loads on glibc 2.17. The old homes (libdl.so.2, libpthread.so.0) are linked in for those systems;
 * newer ones keep empty stand-ins of them. Force-included into every file. */
#pragma once

/* x86_64 has grown since 2.2.5; everything of aarch64 begins with 2.17. */
#if defined(__x86_64__)
#define SIM_GLIBC_BASE "GLIBC_2.2.5"
#define SIM_GLIBC_CLOCKS "GLIBC_2.3.3"
#elif defined(__aarch64__)
#define SIM_GLIBC_BASE "GLIBC_2.17"
#define SIM_GLIBC_CLOCKS "GLIBC_2.17"
#endif

#if defined(SIM_GLIBC_BASE) && !defined(SIM_SANITIZED) /* sanitizers have their own of these */
#define SIM_OLD(name) __asm__(".symver " #name "," #name "@" SIM_GLIBC_BASE)
SIM_OLD(dlopen);
SIM_OLD(dlsym);
SIM_OLD(dlerror);
SIM_OLD(pthread_create);
SIM_OLD(pthread_once);
SIM_OLD(pthread_sigmask);
__asm__(".symver pthread_condattr_setclock,pthread_condattr_setclock@" SIM_GLIBC_CLOCKS);
#undef SIM_OLD
#endif
