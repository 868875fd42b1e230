#include "server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

bool caller_read(const struct call *call, uint64_t from, void *to, size_t size)
{
    struct iovec here = {to, size}, there = {(void *)(uintptr_t)from, size};
    return from && process_vm_readv(call->thread, &here, 1, &there, 1, 0) == (ssize_t)size;
}

bool caller_write(const struct call *call, uint64_t to, const void *from, size_t size)
{
    struct iovec here = {(void *)(uintptr_t)from, size}, there = {(void *)(uintptr_t)to, size};
    return to && process_vm_writev(call->thread, &here, 1, &there, 1, 0) == (ssize_t)size;
}

/* The number behind `name` in a file of /proc; 0: none. */
static uint64_t number_in(const char *path, const char *name)
{
    char line[256];
    uint64_t found = 0;
    FILE *file = fopen(path, "re");
    while (file && !found && fgets(line, sizeof(line), file))
        if (strncmp(line, name, strlen(name)) == 0)
            found = strtoull(line + strlen(name), NULL, 10);
    if (file)
        fclose(file);
    return found;
}

pid_t caller_process(const struct call *call)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/status", (int)call->thread);
    return (pid_t)number_in(path, "Tgid:");
}

/* To ask by fstat(2) would be to ask ourselves. That it is of our mount, the number says: it is one that we gave. */
uint64_t caller_inode(const struct call *call, int descriptor)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", (int)call->thread, descriptor);
    return number_in(path, "ino:");
}
