#include "process.h"

#include "log.h"

#include <sys/mman.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

static struct process *_Atomic area;

struct process *process(void)
{
    struct process *have = atomic_load_explicit(&area, memory_order_acquire);
    if (__builtin_expect(have != NULL, 1))
        return have;
    struct process *made =
        mmap(NULL, sizeof(*made), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED || madvise(made, sizeof(*made), MADV_WIPEONFORK) != 0) {
        LOG_ONCE("no memory that fork() wipes: allocations are denied");
        if (made != MAP_FAILED)
            munmap(made, sizeof(*made));
        return NULL;
    }
    if (atomic_compare_exchange_strong(&area, &have, made))
        return made;
    munmap(made, sizeof(*made));
    return have;
}
