/* Looks at the host: `answer` of nvc/discovery/key.py, `look` of nvc/discovery/devices/sockets.py and the sources of
 * nvc/apply/replay.py, with the same bytes for what is found. A failure other than that nothing is there tells nothing. */
#include "cdi/cdi.h"
#include "replay.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONTENT_MAX 65536
#define LINES_MAX (1 << 20) /* of /proc/devices */
#define ENTRIES_MAX 1024
#define SOURCES "iotv" /* kinds whose descriptors are mounted; of these, only `i` follows a link */

static bool absent(int error)
{
    return error == -ENOENT || error == -ENOTDIR;
}

static bool add(struct buffer *out, const char *bytes, size_t size)
{
    return size <= CONTENT_MAX - out->size && buffer_add(out, bytes, size);
}

/* What fstat(2) says, as far as the kind wants it. */
static bool status(int fd, char kind, struct buffer *out)
{
    struct stat st;
    char text[160];
    int size = 0;

    if (fstat(fd, &st) < 0)
        return false;
    unsigned long long device = st.st_dev, inode = st.st_ino, number = st.st_rdev;
    long long modified = cdi_nanoseconds(&st.st_mtim), changed = cdi_nanoseconds(&st.st_ctim),
              length = st.st_size;
    unsigned type = st.st_mode & S_IFMT;
    switch (kind) {
    case 'i':
        size = sprintf(text, "%o %llu %llu %lld %lld", type, device, inode, length, modified);
        break;
    case 'd':
        size = sprintf(text, "%llu %llu %lld", device, inode, modified);
        break;
    case 'n':
        size = sprintf(text, "%llu", inode);
        break;
    case 'r':
    case 'v':
        size = sprintf(text, "%o %llu", type, number);
        break;
    case 't':
        size = sprintf(text, "%o", type);
        break;
    case 'o':
        size = sprintf(text, "%o %u", st.st_mode, st.st_uid);
        break;
    case 'f':
        size = sprintf(text, "%o %u %llu %llu %lld %lld %lld", st.st_mode, st.st_uid, device, inode, length,
                       modified, changed);
        break;
    default:
        return false;
    }
    return add(out, text, (size_t)size);
}

static bool content(int fd, struct buffer *out)
{
    return add(out, "+", 1) && buffer_read(out, fd, CONTENT_MAX) && !memchr(out->bytes, '\0', out->size);
}

/* The lines that name the driver. */
static bool lines(int fd, struct buffer *out)
{
    struct buffer read = {.bytes = NULL};
    bool made = buffer_read(&read, fd, LINES_MAX) && !memchr(read.bytes, '\0', read.size);

    for (char *line = read.bytes, *end = read.bytes + read.size; made && line;) {
        char *newline = memchr(line, '\n', (size_t)(end - line));
        size_t length = (size_t)((newline ? newline : end) - line);
        if (memmem(line, length, "nvidia", 6))
            made = (out->size == 0 || add(out, "\n", 1)) && add(out, line, length);
        line = newline ? newline + 1 : NULL;
    }
    free(read.bytes);
    return made;
}

static int by_name(const void *one, const void *other)
{
    return strcmp(*(char *const *)one, *(char *const *)other);
}

/* Names with inodes, sorted; closes `fd`. */
static bool entries(int fd, struct buffer *out)
{
    static char *found[ENTRIES_MAX];
    size_t count = 0;
    struct dirent *entry;
    DIR *directory = fdopendir(fd);
    bool made = directory != NULL;

    if (!directory)
        close(fd);
    while (made && (errno = 0, entry = readdir(directory))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        made = count < ENTRIES_MAX &&
               asprintf(&found[count], "%s %llu\n", entry->d_name, (unsigned long long)entry->d_ino) > 0;
        count += made;
    }
    made = made && errno == 0;
    qsort(found, count, sizeof(*found), by_name);
    for (size_t i = 0; i < count; i++) {
        made = made && add(out, found[i], strlen(found[i]));
        free(found[i]);
    }
    if (directory)
        closedir(directory);
    return made;
}

/* Mode and owner of a socket's file and where it really is below the root. A link is Python's. */
static bool place_of_socket(int fd, int root, struct buffer *out)
{
    char link[64], base[PATH_MAX], path[PATH_MAX];
    struct stat st;

    if (fstat(fd, &st) < 0 || S_ISLNK(st.st_mode))
        return false;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", root);
    ssize_t prefix = readlink(link, base, sizeof(base) - 1);
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof(path) - 1);
    if (prefix <= 0 || length <= 0)
        return false;
    base[prefix == 1 ? 0 : prefix] = path[length] = '\0';
    size_t skipped = strlen(base);
    if (strncmp(path, base, skipped) != 0 || path[skipped] != '/')
        return false;
    int size = snprintf(link, sizeof(link), "%o %u ", st.st_mode, st.st_uid);
    return add(out, link, (size_t)size) && add(out, path + skipped, strlen(path + skipped));
}

static int open_place(int root, const char *path, char kind)
{
    uint64_t flags = strchr("cm", kind) ? O_RDONLY | O_NONBLOCK | O_NOCTTY
                     : kind == 'l'      ? O_RDONLY | O_DIRECTORY
                                        : O_PATH;

    if (strchr("otvs", kind))
        flags |= O_NOFOLLOW;
    return nvc_open_below(root, path, flags, 0);
}

static bool look_at(int fd, int root, char kind, struct buffer *out)
{
    switch (kind) {
    case 'c':
        return content(fd, out);
    case 'm':
        return lines(fd, out);
    case 's':
        return place_of_socket(fd, root, out);
    default:
        return status(fd, kind, out);
    }
}

static int root_of(const struct replay_record *record, char name)
{
    const char *names = "DSVH", *at = name ? strchr(names, name) : NULL;

    return at ? record->roots[at - names] : -1;
}

enum replay_look replay_look(const struct replay_record *record, const char *place, const char *answer,
                             int *kept)
{
    static struct buffer found;
    int root = root_of(record, place[0]);
    char kind = root < 0 ? '\0' : place[1];

    if (kept)
        *kept = -1;
    if (!kind || (kept && !strchr(SOURCES, kind)))
        return REPLAY_UNKNOWN;
    found.size = 0;
    int fd = open_place(root, place + 2, kind);
    if (fd < 0 && !absent(fd))
        return REPLAY_UNKNOWN;
    bool told = true;
    if (fd < 0)
        told = add(&found, "-", strchr("lm", kind) ? 0 : 1);
    else
        told = kind == 'l' ? entries(fd, &found) : look_at(fd, root, kind, &found);
    bool same = told && buffer_add(&found, "", 1) && strcmp(found.bytes, answer) == 0;
    if (kept && same && fd >= 0)
        *kept = fd;
    else if (fd >= 0 && kind != 'l')
        close(fd);
    return !told ? REPLAY_UNKNOWN : same && (!kept || fd >= 0) ? REPLAY_SAME : REPLAY_OTHER;
}
