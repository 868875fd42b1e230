/* Binds functions that glibc 2.34 moved into libc.so.6 to their old versions, so that what is built on a new
 * system still loads on glibc 2.17. The old homes (libdl.so.2, libpthread.so.0) are linked in for those systems;
 * newer ones keep empty stand-ins of them. Force-included into every file. */
#ifndef NVC_SIM_GLIBC_H
#define NVC_SIM_GLIBC_H

#if defined(__x86_64__)
#define SIM_GLIBC_BASE "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define SIM_GLIBC_BASE "GLIBC_2.17"
#endif

#if defined(SIM_GLIBC_BASE) && !defined(__SANITIZE_ADDRESS__)
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIM_SANITIZED
#endif
#endif
#ifndef SIM_SANITIZED
#define SIM_OLD(name) __asm__(".symver " #name "," #name "@" SIM_GLIBC_BASE)
SIM_OLD(dladdr);
SIM_OLD(dlopen);
SIM_OLD(dlsym);
SIM_OLD(dlerror);
SIM_OLD(pthread_create);
SIM_OLD(pthread_join);
SIM_OLD(pthread_once);
#undef SIM_OLD
#endif
#endif

#endif
