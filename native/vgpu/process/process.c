#include "process.h"

#include "log.h"

#include <sys/mman.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

struct process *_Atomic process_area;

void *wiped_memory(size_t size)
{
    void *made = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        return NULL;
    if (madvise(made, size, MADV_WIPEONFORK) == 0)
        return made;
    munmap(made, size);
    return NULL;
}

struct process *process_make(void)
{
    struct process *have = NULL, *made = wiped_memory(sizeof(*made));
    if (!made)
        LOG_ONCE("no memory that fork() wipes: allocations are denied");
    if (!made || atomic_compare_exchange_strong(&process_area, &have, made))
        return made;
    munmap(made, sizeof(*made));
    return have;
}

static bool turn_is_of_dead(uint32_t seen)
{
    return syscall(SYS_tgkill, getpid(), seen, 0) != 0;
}

static __attribute__((noinline)) _Atomic uint32_t *turn_at(size_t word)
{
    struct process *in = process();
    return in && word ? (_Atomic uint32_t *)(void *)((char *)in + word) : NULL;
}

void turn_take(size_t at)
{
    _Atomic uint32_t *word = turn_at(at);
    static const struct timespec pause = {.tv_nsec = 100000000};
    uint32_t own = (uint32_t)syscall(SYS_gettid), seen = 0;
    while (word && !atomic_compare_exchange_strong(word, &seen, own)) {
        if (syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &pause, NULL, 0) != 0 &&
            turn_is_of_dead(seen))
            atomic_compare_exchange_strong(word, &seen, 0);
        seen = 0;
    }
}

void turn_drop(size_t at)
{
    _Atomic uint32_t *word = turn_at(at);
    if (!word)
        return;
    atomic_store(word, 0);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
