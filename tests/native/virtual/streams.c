/* stdio: its own reads and writes are calls within the C library. */
#define __NO_INLINE__ 1
#include "clocks.h"
#include "descriptors.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>

static bool await_stream(FILE *stream)
{
    return stream->_IO_read_ptr < stream->_IO_read_end || descriptor_await(fileno(stream), POLLIN);
}

WORLD_API char *fgets(char *restrict out, int size, FILE *restrict stream)
{
    return await_stream(stream) ? REAL(fgets)(out, size, stream) : NULL;
}

WORLD_API ssize_t getline(char **restrict line, size_t *restrict size, FILE *restrict stream)
{
    return await_stream(stream) ? REAL(getline)(line, size, stream) : -1;
}

WORLD_API ssize_t __getdelim(char **restrict line, size_t *restrict size, int end, FILE *restrict stream)
{
    return await_stream(stream) ? REAL(__getdelim)(line, size, end, stream) : -1;
}

WORLD_API int fgetc(FILE *stream)
{
    return await_stream(stream) ? REAL(fgetc)(stream) : EOF;
}

WORLD_API int getc(FILE *stream)
{
    return fgetc(stream);
}

WORLD_API int getchar(void)
{
    return fgetc(stdin);
}

WORLD_API int fflush(FILE *stream)
{
    return (int)descriptor_seen(REAL(fflush)(stream));
}

WORLD_API int puts(const char *text)
{
    return (int)descriptor_seen(REAL(puts)(text));
}

WORLD_API int fputs(const char *restrict text, FILE *restrict stream)
{
    return (int)descriptor_seen(REAL(fputs)(text, stream));
}

WORLD_API int putchar(int character)
{
    return (int)descriptor_seen(REAL(putchar)(character));
}

WORLD_API int vfprintf(FILE *restrict stream, const char *restrict format, va_list list)
{
    return (int)descriptor_seen(REAL(vfprintf)(stream, format, list));
}

WORLD_API int printf(const char *restrict format, ...)
{
    va_list list;
    va_start(list, format);
    int result = vfprintf(stdout, format, list);
    va_end(list);
    return result;
}

WORLD_API int fprintf(FILE *restrict stream, const char *restrict format, ...)
{
    va_list list;
    va_start(list, format);
    int result = vfprintf(stream, format, list);
    va_end(list);
    return result;
}

int __printf_chk(int flag, const char *restrict format, ...);
int __fprintf_chk(FILE *restrict stream, int flag, const char *restrict format, ...);

WORLD_API int __printf_chk(int flag, const char *restrict format, ...)
{
    va_list list;
    (void)flag;
    va_start(list, format);
    int result = vfprintf(stdout, format, list);
    va_end(list);
    return result;
}

WORLD_API int __fprintf_chk(FILE *restrict stream, int flag, const char *restrict format, ...)
{
    va_list list;
    (void)flag;
    va_start(list, format);
    int result = vfprintf(stream, format, list);
    va_end(list);
    return result;
}
