/* Threads and processes, and what they wait for in each other: locks, conditions, semaphores, ends. */
#include "clocks.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* A lock is held while time passes now and then. It may be dropped by a thread that has left: so nobody waits for long. */
enum { LOCK_NS = 1000000, CHILD_NS = 10000000 };

static _Atomic uint32_t lock_waiters;

static uint64_t key_of(const void *at)
{
    return (uint64_t)(uintptr_t)at ^ (uint64_t)(uint32_t)getpid() << 48;
}

/* pthread_t's are addresses, and where they lie nothing else has a key. */
static uint64_t key_of_thread(pthread_t thread)
{
    return key_of((const void *)(uintptr_t)thread) ^ 1;
}

WORLD_API int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    if (!world_self)
        return REAL(pthread_mutex_lock)(mutex);
    int result = REAL(pthread_mutex_trylock)(mutex);
    while (result == EBUSY) {
        atomic_fetch_add(&lock_waiters, 1);
        world_wait(key_of(mutex), world_after(LOCK_NS), false);
        atomic_fetch_sub(&lock_waiters, 1);
        result = REAL(pthread_mutex_trylock)(mutex);
    }
    return result;
}

WORLD_API int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    int result = REAL(pthread_mutex_unlock)(mutex);
    if (world_self && atomic_load_explicit(&lock_waiters, memory_order_relaxed))
        world_wake(key_of(mutex), 1);
    return result;
}

static int wait_for(pthread_cond_t *condition, pthread_mutex_t *mutex, uint64_t due)
{
    pthread_mutex_unlock(mutex); /* nobody else runs before the caller waits */
    enum world_why why = world_wait(key_of(condition), due, false);
    pthread_mutex_lock(mutex);
    return why == WORLD_TIMEOUT ? ETIMEDOUT : 0;
}

WORLD_API int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    if (!world_self)
        return REAL(pthread_cond_wait)(condition, mutex);
    return wait_for(condition, mutex, WORLD_NEVER);
}

/* glibc keeps a condition's clock where no interface shows it: only times since 1970 are so large. */
static clockid_t clock_of(const struct timespec *until)
{
    return until->tv_sec > 1000000000 ? CLOCK_REALTIME : CLOCK_MONOTONIC;
}

WORLD_API int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                     const struct timespec *until)
{
    if (!world_self)
        return REAL(pthread_cond_timedwait)(condition, mutex, until);
    return wait_for(condition, mutex, time_of(clock_of(until), until));
}

WORLD_API int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock,
                                     const struct timespec *until)
{
    if (!world_self)
        return REAL(pthread_cond_clockwait)(condition, mutex, clock, until);
    return wait_for(condition, mutex, time_of(clock, until));
}

WORLD_API int pthread_cond_signal(pthread_cond_t *condition)
{
    if (!world_self)
        return REAL(pthread_cond_signal)(condition);
    world_wake(key_of(condition), 1);
    return 0;
}

WORLD_API int pthread_cond_broadcast(pthread_cond_t *condition)
{
    if (!world_self)
        return REAL(pthread_cond_broadcast)(condition);
    world_wake(key_of(condition), WORLD_PARTICIPANTS);
    return 0;
}

static int wait_on(sem_t *semaphore, uint64_t due)
{
    while (REAL(sem_trywait)(semaphore) != 0) {
        if (errno != EAGAIN)
            return -1;
        if (world_wait(key_of(semaphore), due, false) == WORLD_TIMEOUT) {
            errno = ETIMEDOUT;
            return -1;
        }
    }
    return 0;
}

WORLD_API int sem_wait(sem_t *semaphore)
{
    return world_self ? wait_on(semaphore, WORLD_NEVER) : REAL(sem_wait)(semaphore);
}

WORLD_API int sem_timedwait(sem_t *semaphore, const struct timespec *until)
{
    if (!world_self)
        return REAL(sem_timedwait)(semaphore, until);
    return wait_on(semaphore, time_of(CLOCK_REALTIME, until));
}

WORLD_API int sem_clockwait(sem_t *semaphore, clockid_t clock, const struct timespec *until)
{
    if (!world_self)
        return REAL(sem_clockwait)(semaphore, clock, until);
    return wait_on(semaphore, time_of(clock, until));
}

WORLD_API int sem_post(sem_t *semaphore)
{
    int result = REAL(sem_post)(semaphore);
    if (world_self)
        world_wake(key_of(semaphore), 1);
    return result;
}

struct beginning {
    void *(*run)(void *);
    void *argument;
    struct participant *self;
};

static pthread_key_t at_end;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Called again while the program's own destructors may set values: the last call of all ends the part of this thread. */
static void end_thread(void *calls)
{
    uintptr_t call = (uintptr_t)calls;
    if (!world_self)
        return;
    if (call < PTHREAD_DESTRUCTOR_ITERATIONS) {
        pthread_setspecific(at_end, (void *)(call + 1));
        return;
    }
    world_wake(key_of_thread(pthread_self()), WORLD_PARTICIPANTS);
    world_leave();
    world_delay();
}

static void make_key(void)
{
    pthread_key_create(&at_end, end_thread);
}

/* Nothing before it has the turn: whether it came before what its creator does next is not the world's, and its first call
 * of the allocator decides where in memory all that follows lies. */
static void *begin(void *argument)
{
    struct beginning from = *(struct beginning *)argument;
    world_delay();
    world_enter(from.self);
    free(argument);
    pthread_setspecific(at_end, (void *)1);
    return from.run(from.argument);
}

WORLD_API int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                             void *argument)
{
    if (!world_self)
        return REAL(pthread_create)(thread, attributes, run, argument);
    pthread_once(&once, make_key);
    struct beginning *from = malloc(sizeof(*from));
    struct participant *self = world_claim(world_self->time + world->wake);
    if (!from || !self)
        return EAGAIN;
    *from = (struct beginning){run, argument, self};
    int result = REAL(pthread_create)(thread, attributes, begin, from);
    if (result == 0) {
        self->thread = (uint64_t)*thread;
    } else {
        free(from);
        atomic_store(&self->phase, WORLD_VACANT);
    }
    return result;
}

static bool is_running(pthread_t thread)
{
    for (uint32_t i = 0; i < atomic_load(&world->used); i++) {
        const struct participant *one = &world->participants[i];
        if (one->phase == WORLD_PRESENT && one->pid == getpid() && one->thread == (uint64_t)thread)
            return true;
    }
    return false;
}

WORLD_API int pthread_join(pthread_t thread, void **value)
{
    while (world_self && is_running(thread))
        world_wait(key_of_thread(thread), WORLD_NEVER, false);
    return REAL(pthread_join)(thread, value);
}

WORLD_API pid_t fork(void)
{
    struct participant *self = world_self ? world_claim(world_self->time + world->wake) : NULL;
    if (world_self && !self) {
        errno = EAGAIN;
        return -1;
    }
    pid_t child = REAL(fork)();
    if (child == 0 && self) {
        atomic_store(&self->pid, getpid());
        atomic_store(&lock_waiters, 0);
        world_enter(self);
    } else if (self && child > 0) {
        atomic_store(&self->pid, child);
    } else if (self) {
        atomic_store(&self->phase, WORLD_VACANT);
    }
    return child;
}

/* Only what may be done after fork(2) may be done after vfork(2). */
WORLD_API pid_t vfork(void)
{
    return fork();
}

WORLD_API pid_t wait4(pid_t which, int *status, int options, struct rusage *use)
{
    for (;;) {
        pid_t found =
            (pid_t)world_call(SYS_wait4, which, status, world_self ? options | WNOHANG : options, use);
        if (found != 0 || !world_self || options & WNOHANG)
            return found;
        if (world_wait(0, world_after(CHILD_NS), true) == WORLD_INTERRUPTED) {
            errno = EINTR;
            return -1;
        }
    }
}

WORLD_API pid_t waitpid(pid_t which, int *status, int options)
{
    return wait4(which, status, options, NULL);
}

WORLD_API pid_t wait(int *status)
{
    return wait4(-1, status, 0, NULL);
}

/* Of who has a child in its own memory. Both are out of the world until that has ended: it takes no time. */
static __thread struct participant *aside;

WORLD_API int clone(int (*run)(void *), void *stack, int flags, void *argument, ...)
{
    va_list list;
    va_start(list, argument);
    pid_t *parent = va_arg(list, pid_t *);
    void *tls = va_arg(list, void *);
    pid_t *child = va_arg(list, pid_t *);
    va_end(list);
    if (flags & CLONE_VM && !(flags & CLONE_THREAD)) {
        aside = world_self;
        world_self = NULL;
    }
    return REAL(clone)(run, stack, flags, argument, parent, tls, child);
}

WORLD_API int waitid(idtype_t type, id_t id, siginfo_t *found, int options)
{
    if (aside && options & __WALL) {
        int result = (int)world_call(SYS_waitid, type, id, found, options, NULL);
        world_self = aside;
        aside = NULL;
        return result;
    }
    for (;;) {
        siginfo_t own = {0};
        int result =
            (int)world_call(SYS_waitid, type, id, &own, world_self ? options | WNOHANG : options, NULL);
        bool none = result == 0 && own.si_pid == 0;
        if (!none || !world_self || options & WNOHANG) {
            if (found)
                *found = own;
            return result;
        }
        world_wait(0, world_after(CHILD_NS), true);
    }
}

WORLD_API int system(const char *command)
{
    if (!world_self)
        return REAL(system)(command);
    int status;
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    return child < 0 || waitpid(child, &status, 0) != child ? -1 : status;
}

static bool takes_part(pid_t process)
{
    for (uint32_t i = 0; i < atomic_load(&world->used); i++)
        if (world->participants[i].phase == WORLD_PRESENT && world->participants[i].pid == process)
            return true;
    return false;
}

/* The thread of the simulated driver that does what a GPU does has this name. */
WORLD_API int prctl(int option, ...)
{
    va_list list;
    long words[4];
    va_start(list, option);
    for (int i = 0; i < 4; i++)
        words[i] = va_arg(list, long);
    va_end(list);
    if (world_self && option == PR_SET_NAME && strcmp((const char *)words[0], "cuda-sim") == 0)
        world_self->device = 1;
    return (int)world_call(SYS_prctl, option, words[0], words[1], words[2], words[3]);
}

WORLD_API int kill(pid_t process, int signal)
{
    if (world_self && process > 0 && (signal == SIGSTOP || signal == SIGCONT) && takes_part(process)) {
        world_stop(process, signal == SIGSTOP);
        return 0;
    }
    int result = (int)world_call(SYS_kill, process, signal);
    if (result == 0 && signal == SIGKILL && world_self && process > 0 && takes_part(process))
        world_kill(process);
    return result;
}

/* The keeper would find out, by a look each 50 ms of real time. */
WORLD_API int raise(int signal)
{
    if (signal == SIGKILL && world_self)
        world_leave_killed();
    return REAL(raise)(signal);
}

WORLD_API int pause(void)
{
    if (!world_self)
        return REAL(pause)();
    while (world_wait(0, WORLD_NEVER, false) != WORLD_INTERRUPTED)
        ;
    errno = EINTR;
    return -1;
}

WORLD_API void _exit(int status)
{
    if (world_self)
        world_leave_all();
    world_call(SYS_exit_group, status);
    __builtin_unreachable();
}

WORLD_API void _Exit(int status)
{
    _exit(status);
}

static void __attribute__((destructor)) end_process(void)
{
    if (world_self)
        world_leave_all();
}
