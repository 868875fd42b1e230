/* Internal to C: bytes that grow, files that are read or written whole, and descriptors that there may not be. */
#pragma once
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

struct buffer {
    char *bytes; /* from malloc */
    size_t size, room;
};

/* Appends; false, with errno, where memory is short. */
bool buffer_add(struct buffer *buffer, const void *bytes, size_t size);
/* Appends all of a file; false, with errno, where it cannot be read, or there are more than `most` bytes then: EFBIG. */
bool buffer_read(struct buffer *buffer, int fd, size_t most);
/* False, with errno, where not all could be written. */
bool write_all(int fd, const void *bytes, size_t size);

/* Whether all of it is printable ASCII. */
bool is_plain(const char *text);

/* A detached mount of a new file system; -1 with errno. `options` are names and values in turn, NULL the value of a flag, and
 * end with NULL. */
int new_mount(const char *type, const char *const *options);

/* Of a clock that nobody sets. */
int64_t now_ms(void);
/* Whether the process of a pidfd ends in time. */
bool ends(int pidfd, int timeout_ms);

/* Closes a descriptor, if it is one; errno stays. */
static inline void shut(int fd)
{
    int saved = errno;

    if (fd >= 0)
        close(fd);
    errno = saved;
}
