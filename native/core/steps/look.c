/* Looking at a container's rootfs, through its descriptor alone. */
#include "_ldcache.h"
#include "_steps.h"
#include "files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define CACHE "/etc/ld.so.cache"
#define MOUNTS_MAX (64u << 20) /* bytes of mountinfo */
enum { PARTS_MAX = 128 };      /* of a path and of the links in it; Linux follows 40 links */

/* Whether an error tells nothing of what was looked at: nobody may take it for "not there". A process of the same tenant
 * can have a lease on a library (EWOULDBLOCK), and FUSE can keep its files from the host's root (EACCES). */
bool tells_nothing(int error)
{
    switch (error) {
    case 0:
    case ENOENT:
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG: /* no loader finds it by this path */
    case EBADMSG:      /* it is no library, or damaged */
    case EFBIG:
        return false;
    default:
        return true;
    }
}

/* A descriptor of `path` below `root`, links resolved inside it; -1 with errno. `flags` are open(2)'s. */
int look(struct nvc_steps *s, int root, const char *path, uint64_t flags)
{
    int fd = nvc_open_below(root, path, flags, 0);
    if (fd >= 0)
        return fd;
    errno = -fd;
    if (tells_nothing(errno))
        steps_fail(s, errno, "open", path);
    return -1;
}

/* `path` without links, `.` and `..`: behind a link, `..` leads elsewhere than its text says. False: nothing is there, or
 * it goes on for longer than anybody's does, which is a failure. */
bool follow(struct nvc_steps *s, const char *path, char out[NVC_STEPS_PATH])
{
    char left[NVC_STEPS_PATH], next[NVC_STEPS_PATH], text[NVC_STEPS_PATH];
    bool fits = snprintf(left, sizeof(left), "%s", path) < (int)sizeof(left);
    const char *at = left;

    out[0] = '\0';
    for (int parts = 0; fits && *(at += strspn(at, "/"));) {
        size_t size = strcspn(at, "/"), length = strlen(out);
        if (size <= 2 && memcmp(at, "..", size) == 0) {
            if (size == 2 && length > 0)
                *strrchr(out, '/') = '\0';
            at += size;
            continue;
        }
        fits = parts++ < PARTS_MAX && length + 1 + size < NVC_STEPS_PATH;
        if (!fits)
            break;
        snprintf(out + length, NVC_STEPS_PATH - length, "/%.*s", (int)size, at);
        at += size;
        int fd = look(s, s->rootfs, out, O_PATH | O_NOFOLLOW);
        if (fd < 0)
            return false;
        ssize_t got = readlinkat(fd, "", text, sizeof(text));
        close(fd);
        if (got < 0) /* no link */
            continue;
        out[*text == '/' ? 0 : length] = '\0';
        fits = snprintf(next, sizeof(next), "%.*s%s", (int)got, text, at) < (int)sizeof(next);
        memcpy(left, next, sizeof(left));
        at = left;
    }
    if (!fits)
        steps_fail(s, ELOOP, "look into container", path);
    if (!*out)
        strcpy(out, "/");
    return fits;
}

/* The file that an O_PATH descriptor stands for, to be read; `path` is for messages. */
int reopen(struct nvc_steps *s, int fd, const char *path)
{
    char link[32];

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    int readable = open(link, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (readable < 0 && tells_nothing(errno))
        steps_fail(s, errno, "open", path);
    return readable;
}

/* A regular file of the image. It is looked at first, and that very inode is opened then: to open a device, as root of
 * the host, may be to do something with it. */
int look_regular(struct nvc_steps *s, int root, const char *path)
{
    struct stat st;
    int seen = look(s, root, path, O_PATH), fd = -1;

    if (seen < 0)
        return -1;
    if (fstat(seen, &st) < 0)
        steps_fail(s, errno, "open", path);
    else if (S_ISREG(st.st_mode))
        fd = reopen(s, seen, path);
    close(seen);
    return fd;
}

bool is_same_place(struct nvc_steps *s, int root, const char *one, const char *other, uint64_t flags)
{
    struct stat first, second;
    int a = look(s, root, one, O_PATH | flags), b = look(s, root, other, O_PATH | flags);
    bool found = a >= 0 && b >= 0, known = found && fstat(a, &first) == 0 && fstat(b, &second) == 0;

    if (found && !known)
        steps_fail(s, errno, "look into container", other);
    shut(a);
    shut(b);
    return known && first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

/* What is at `path`, links at its end not followed. What can be neither seen nor missed is a failure. */
enum kind kind_at(struct nvc_steps *s, int root, const char *path)
{
    struct stat st = {0};
    int fd = look(s, root, path, O_PATH | O_NOFOLLOW);

    if (fd < 0) {
        if (errno != ENOENT)
            steps_fail(s, errno, "create-symlinks", path);
        return MISSING;
    }
    if (fstat(fd, &st) < 0)
        steps_fail(s, errno, "create-symlinks", path);
    close(fd);
    return S_ISLNK(st.st_mode) ? LINK : OTHER;
}

uint64_t mount_of(struct nvc_steps *s, int fd)
{
    struct nvc_identity identity = {0};

    int result = nvc_identity(fd, &identity);
    if (result < 0)
        steps_fail(s, -result, "stat mount", "");
    return identity.mount;
}

/* Whether `directory` is on a read-only mount other than the rootfs, such as a volume of the host. The applier writes to
 * a read-only rootfs through a clone of its mount; it must not do so to a volume that a link of the image leads to. */
bool is_foreign(struct nvc_steps *s, const char *directory)
{
    struct statvfs vfs = {0};
    const char *path = *directory ? directory : "/";

    for (size_t i = 0; i < s->foreign.count; i++)
        if (strcmp(s->foreign.at[i].a, path) == 0)
            return s->foreign.at[i].b[0] == 'y';
    int fd = look(s, s->rootfs, path, O_PATH | O_DIRECTORY);
    if (fd >= 0 && fstatvfs(fd, &vfs) < 0)
        steps_fail(s, errno, "stat mount", path);
    bool foreign = fd >= 0 && (vfs.f_flag & ST_RDONLY) && mount_of(s, fd) != s->root_mount;
    shut(fd);
    rows_add(s, &s->foreign, path, foreign ? "y" : "n", NULL);
    return foreign;
}

/* At most `most` names of a directory, in its own order; more of them are no failure. */
void names_in(struct nvc_steps *s, int directory, struct rows *names, size_t most)
{
    int copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = copy < 0 ? NULL : fdopendir(copy);
    struct dirent *entry = NULL;

    while (entries != NULL && names->count < most && (errno = 0, entry = readdir(entries)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            rows_add(s, names, entry->d_name, NULL, NULL);
    if (entries == NULL || (entry == NULL && names->count < most && errno != 0))
        steps_fail(s, errno, "list directory", "");
    if (entries != NULL)
        closedir(entries);
    else
        shut(copy);
}

/* Appends all of `fd`; false where there is more than `most` bytes, or it cannot be read. */
bool read_some(struct nvc_steps *s, int fd, struct buffer *content, size_t most)
{
    bool whole = buffer_read(content, fd, most);

    if (!whole && errno == ENOMEM)
        steps_fail(s, ENOMEM, "look into container", "");
    return whole;
}

bool read_cache(struct nvc_steps *s, struct buffer *content, struct ldcache_view *view)
{
    int fd = look_regular(s, s->rootfs, CACHE);
    bool whole = fd >= 0 && read_some(s, fd, content, NVC_LDCACHE_MAX);

    if (fd >= 0 && !whole && tells_nothing(errno))
        steps_fail(s, errno, "read loader cache of the image", CACHE);
    shut(fd);
    int result = whole && content->size ? ldcache_read((const uint8_t *)content->bytes, content->size, view)
                                        : -EBADMSG;
    if (result == -ENOMEM)
        steps_fail(s, ENOMEM, "read loader cache of the image", CACHE);
    return result == 0;
}

/* A field of mountinfo as it was: the kernel writes blanks and backslashes in octal. */
static void unescape(char *field)
{
    char *to = field;

    for (const char *from = field; *from; to++) {
        unsigned code = 0;
        if (from[0] == '\\' && sscanf(from + 1, "%3o", &code) == 1 && code < 256) {
            *to = (char)code;
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = '\0';
}

/* Reads the list of mounts, and makes each line "PLACE NUL" in it. */
static void read_mounts(struct nvc_steps *s)
{
    int fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
    struct buffer text = {.bytes = NULL};

    if (fd < 0 || !read_some(s, fd, &text, MOUNTS_MAX))
        steps_fail(s, errno, "read the container's mounts", "/proc/self/mountinfo");
    shut(fd);
    steps_add(s, &text, "", 1);
    for (char *line = text.bytes, *next; !s->failed && *line; line = next) {
        char *end = strchr(line, '\n');
        next = end ? end + 1 : line + strlen(line);
        for (int field = 0; field < 4 && line; field++) {
            line = strchr(line, ' ');
            line = line && line < next ? line + 1 : NULL;
        }
        char *blank = line ? strchr(line, ' ') : NULL;
        if (blank == NULL || blank >= next)
            continue;
        *blank = '\0';
        unescape(line);
        steps_add(s, &s->mountinfo, line, strlen(line) + 1);
    }
    steps_add(s, &s->mountinfo, "", 1);
    free(text.bytes);
}

/* Names in a directory on which something is mounted. These are hints: look at the descriptor after opening one. */
void mounted_in(struct nvc_steps *s, int directory, struct rows *names)
{
    char link[32], path[NVC_STEPS_PATH + 1];

    if (s->mountinfo.size == 0)
        read_mounts(s);
    snprintf(link, sizeof(link), "/proc/self/fd/%d", directory);
    ssize_t length = readlink(link, path, NVC_STEPS_PATH - 1);
    if (length <= 0 || length >= NVC_STEPS_PATH - 1)
        steps_fail(s, length <= 0 ? errno : ENAMETOOLONG, "read the container's mounts", link);
    if (s->failed)
        return;
    while (length > 0 && path[length - 1] == '/')
        length--;
    path[length++] = '/';
    for (const char *place = s->mountinfo.bytes; *place; place += strlen(place) + 1) {
        const char *name = place + length;
        if (strncmp(place, path, (size_t)length) == 0 && *name && strchr(name, '/') == NULL)
            rows_add(s, names, name, NULL, NULL);
    }
}
