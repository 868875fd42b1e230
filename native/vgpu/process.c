#include "process.h"

#include "log.h"

#include <sys/mman.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

struct process *_Atomic process_area;

struct process *process_make(void)
{
    struct process *have = NULL, *made = mmap(NULL, sizeof(*made), PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED || madvise(made, sizeof(*made), MADV_WIPEONFORK) != 0) {
        LOG_ONCE("no memory that fork() wipes: allocations are denied");
        if (made != MAP_FAILED)
            munmap(made, sizeof(*made));
        return NULL;
    }
    if (atomic_compare_exchange_strong(&process_area, &have, made))
        return made;
    munmap(made, sizeof(*made));
    return have;
}
