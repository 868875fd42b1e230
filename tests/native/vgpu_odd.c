/* A program that uses libcuda in an odd way, and asks for memory until it is refused:
 *   namespaces   two copies of the library, in link-map namespaces of their own
 *   memory       the library's file is copied to memory (memfd_create(2)) and loaded from there
 *   moved        the library was loaded by a relative path, and the directory is another one by then
 *   shared       a child shares the address space and the descriptors (CLONE_VM, CLONE_FILES); its parent ends
 * It prints how many MiB it has, waits for the end of its input, and ends. */
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PIECE = 64, STACK = 1 << 20 };

static int (*allocate)(unsigned long *, size_t);

static int fill(void)
{
    unsigned long address;
    int pieces = 0;
    while (allocate && pieces < 256 && allocate(&address, (size_t)PIECE << 20) == 0)
        pieces++;
    return pieces * PIECE;
}

static int use(void *library)
{
    void *context = NULL;
    if (!library)
        return 0;
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(library, "cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(library, "cuDevicePrimaryCtxRetain");
    int (*current)(void *) = (int (*)(void *))dlsym(library, "cuCtxSetCurrent");
    allocate = (int (*)(unsigned long *, size_t))dlsym(library, "cuMemAlloc_v2");
    if (init(0) || retain(&context, 0) || current(context))
        return 0;
    return fill();
}

static void *from_memory(const char *path)
{
    char buffer[1 << 16], name[64];
    ssize_t size;
    int in = open(path, O_RDONLY), out = memfd_create("libcuda.so.1", 0);
    while ((size = read(in, buffer, sizeof(buffer))) > 0)
        if (write(out, buffer, (size_t)size) != size)
            return NULL;
    snprintf(name, sizeof(name), "/proc/self/fd/%d", out);
    return dlopen(name, RTLD_NOW);
}

static int report(void *mebibytes)
{
    char byte;
    printf("%d\n", *(int *)mebibytes + fill());
    fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) > 0)
        ;
    syscall(SYS_exit_group, 0);
    return 0;
}

int main(int argc, char **argv)
{
    static char stack[STACK];
    static int got;
    if (argc != 3)
        return 2;
    if (strcmp(argv[1], "namespaces") == 0) {
        got = use(dlopen("libcuda.so.1", RTLD_NOW));
        got += use(dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW));
    } else if (strcmp(argv[1], "memory") == 0) {
        got = use(from_memory(argv[2]));
    } else if (strcmp(argv[1], "moved") == 0) {
        void *library = dlopen("./libcuda.so.1", RTLD_NOW);
        got = chdir("/") == 0 ? use(library) : 0;
    } else if (strcmp(argv[1], "shared") == 0) {
        got = use(dlopen("libcuda.so.1", RTLD_NOW));
        if (clone(report, stack + STACK - 64, CLONE_VM | CLONE_FILES | SIGCHLD, &got) > 0)
            syscall(SYS_exit, 0);
    }
    return report(&got);
}
