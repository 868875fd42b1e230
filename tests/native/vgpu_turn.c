/* Turns of a process whose state there is no memory for, and then is: the system's calls are in functions of ours. */
#include "process.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define EXPECT(condition)                                                                                   \
    do {                                                                                                    \
        if (!(condition)) {                                                                                 \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                         \
            exit(1);                                                                                        \
        }                                                                                                   \
    } while (0)

#define TURN offsetof(struct process, handles)

static struct process area;
static unsigned int wakes;

void log_line(const char *format, ...)
{
    (void)format;
}

void *__wrap_mmap(void *at, size_t size, int how, int flags, int fd, off_t offset)
{
    (void)at, (void)size, (void)how, (void)flags, (void)fd, (void)offset;
    return MAP_FAILED;
}

/* The thread's number, to who asks for that. */
long __wrap_syscall(long number, ...)
{
    wakes += number == SYS_futex;
    return 1;
}

int main(void)
{
    turn_take(TURN);
    turn_drop(TURN);
    EXPECT(!process() && !wakes);

    process_area = &area;
    turn_take(TURN);
    EXPECT(area.handles == 1);
    turn_drop(TURN);
    EXPECT(!area.handles && wakes == 1);
    return 0;
}
