#include "log.h"

#include "system.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void log_line(const char *format, ...)
{
    char text[512];
    va_list arguments;
    int before = errno;
    const char *target = secure_getenv("NVC_VGPU_LOG");
    if (!target || (strcmp(target, "stderr") != 0 && target[0] != '/')) {
        errno = before;
        return;
    }
    int start = snprintf(text, sizeof(text), "nvc-vgpu[%d]: ", (int)getpid());
    va_start(arguments, format);
    int length = vsnprintf(text + start, sizeof(text) - (size_t)start - 1, format, arguments);
    va_end(arguments);
    size_t size = (size_t)start + (length < 0 ? 0 : (size_t)length);
    if (size > sizeof(text) - 2)
        size = sizeof(text) - 2;
    text[size++] = '\n';
    int fd = target[0] == '/' ? file_open(target, O_WRONLY | O_APPEND | O_CREAT) : 2;
    ssize_t written = fd >= 0 ? syscall(SYS_write, fd, text, size) : 0;
    (void)written; /* nobody to tell */
    if (fd > 2)
        file_close(fd);
    errno = before;
}
