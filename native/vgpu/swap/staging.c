#include "staging.h"

#include "process/place.h"
#include "process/real.h"
#include "slice/account.h"

#include <string.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { WORKERS = 4, HUGE = 2 << 20, SMALL = 4096 };

static char *staging;
static uint64_t size;
static bool registered;

typedef int create_type(uint64_t *, const void *, void *(*)(void *), void *);
typedef int join_type(uint64_t, void **);

/* In libpthread.so.0 before glibc 2.34. */
static void *thread_call(const char *name)
{
    void *_Atomic found = NULL;
    place_resolve("libc.so.6", &name, &found, 1, NULL);
    if (!found)
        place_resolve("libpthread.so.0", &name, &found, 1, NULL);
    return found;
}

/* The program's signals are not for it. */
bool thread_start(uint64_t *id, void *(*work)(void *), void *data)
{
    create_type *create = (create_type *)(uintptr_t)thread_call("pthread_create");
    uint64_t all = UINT64_MAX, before = 0;
    if (!create)
        return false;
    syscall(SYS_rt_sigprocmask, 0 /* SIG_BLOCK */, &all, &before, sizeof(all));
    bool started = create(id, NULL, work, data) == 0;
    syscall(SYS_rt_sigprocmask, 2 /* SIG_SETMASK */, &before, NULL, sizeof(all));
    return started;
}

void thread_join(uint64_t id)
{
    join_type *join = (join_type *)(uintptr_t)thread_call("pthread_join");
    if (join)
        join(id, NULL);
}

static void *populate(void *data)
{
    uint64_t part = ROUND_UP(size / WORKERS, HUGE), from = (uint64_t)(uintptr_t)data * part;
    uint64_t bytes = from < size ? least(part, size - from) : 0;
    if (bytes && madvise(staging + from, bytes, MADV_POPULATE_WRITE) != 0) /* before Linux 5.14 */
        for (uint64_t at = 0; at < bytes; at += SMALL)
            *(volatile char *)(staging + from + at) = 0;
    return NULL;
}

static void populate_all(void)
{
    uint64_t ids[WORKERS];
    bool started[WORKERS];
    for (uintptr_t i = 0; i < WORKERS; i++)
        if (!(started[i] = thread_start(&ids[i], populate, (void *)i)))
            populate((void *)i);
    for (int i = 0; i < WORKERS; i++)
        if (started[i])
            thread_join(ids[i]);
}

char *staging_get(uint64_t bytes)
{
    if (bytes <= size)
        return staging;
    staging_free();
    bytes = ROUND_UP(bytes, HUGE);
    void *at =
        mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    uint64_t skip = ROUND_UP((uintptr_t)at, HUGE) - (uintptr_t)at;
    if (skip)
        munmap(at, skip);
    munmap((char *)at + skip + bytes, HUGE - skip);
    staging = (char *)at + skip;
    size = bytes;
    madvise(staging, size, MADV_HUGEPAGE);
    madvise(staging, size, MADV_DONTFORK);
    madvise(staging, size, MADV_DONTDUMP);
    populate_all();
    registered = REAL(cuMemHostRegister_v2)(staging, size, CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS;
    return staging; /* not registered, copies are slower */
}

void staging_free(void)
{
    if (registered)
        REAL(cuMemHostUnregister)(staging);
    if (staging)
        munmap(staging, size);
    staging = NULL;
    size = 0;
    registered = false;
}

uint64_t staging_size(void)
{
    return size;
}
