/* For LD_PRELOAD: what this process wants to make, somebody else has made just before. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

int mkdirat(int directory, const char *name, mode_t mode)
{
    int (*next)(int, const char *, mode_t) = (int (*)(int, const char *, mode_t))dlsym(RTLD_NEXT, "mkdirat");

    (void)!next(directory, name, mode);
    return next(directory, name, mode);
}

int openat(int directory, const char *name, int flags, ...)
{
    int (*next)(int, const char *, int, mode_t) =
        (int (*)(int, const char *, int, mode_t))dlsym(RTLD_NEXT, "openat");
    mode_t mode = 0;
    va_list more;

    va_start(more, flags);
    if (flags & O_CREAT)
        mode = va_arg(more, mode_t);
    va_end(more);
    if (flags & O_EXCL) {
        int made = next(directory, name, flags, mode);
        if (made >= 0)
            close(made);
    }
    return next(directory, name, flags, mode);
}
