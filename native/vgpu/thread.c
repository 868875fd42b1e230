#include "thread.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>

/* The symbol of before glibc 2.34, which later ones have too. */
#if !defined(__SANITIZE_ADDRESS__) && defined(__x86_64__)
__asm__(".symver pthread_create, pthread_create@GLIBC_2.2.5");
#elif !defined(__SANITIZE_ADDRESS__) && defined(__aarch64__)
__asm__(".symver pthread_create, pthread_create@GLIBC_2.17");
#endif

bool thread_start(void *(*run)(void *), void *argument)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_attr_init(&attributes) != 0)
        return false;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before); /* of the calling thread, as pthread_sigmask of glibc 2.32 */
    bool started = pthread_create(&thread, &attributes, run, argument) == 0;
    sigprocmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return started;
}
