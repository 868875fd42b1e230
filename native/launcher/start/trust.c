/* Who could change this file? Root runs it, so the answer must be: root. */
#include "launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OVERFLOW_ID 65534

/* In a user namespace the files of the host's root show as the overflow id. What could be done with them by
 * others there is done with the rights of the user who made the namespace, no more. */
static bool in_user_namespace(void)
{
    unsigned long inside = 1, outside = 1, size = 0;
    FILE *map = fopen("/proc/self/uid_map", "re");
    bool whole = map && fscanf(map, "%lu %lu %lu", &inside, &outside, &size) == 3 && inside == 0 &&
                 outside == 0 && size == 4294967295;

    if (map)
        fclose(map);
    return map && !whole;
}

static const char *distrust(const struct stat *st, bool above)
{
    if (st->st_uid != 0 && !(st->st_uid == OVERFLOW_ID && in_user_namespace()))
        return "not owned by root, who is about to run it; `make install` gives it to root";
    /* Nobody but its owner can rename or remove what root owns in a sticky directory such as /tmp. */
    if ((st->st_mode & (S_IWGRP | S_IWOTH)) && !(above && (st->st_mode & S_ISVTX)))
        return "writable by others than root, who is about to run it; remove that right (chmod go-w)";
    return NULL;
}

/* Checks the directory `name` and those above it, by descriptor. `name` is cut to the directory at fault. */
static const char *distrust_above(int dir, char *name)
{
    const char *cause = NULL;
    struct stat st, up;

    while (dir >= 0 && !fstat(dir, &st)) {
        cause = distrust(&st, true);
        int parent = cause ? -1 : openat(dir, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
        close(dir);
        if (parent < 0 || fstat(parent, &up))
            return cause ? cause : strerror(errno);
        if (up.st_dev == st.st_dev && up.st_ino == st.st_ino) {
            close(parent);
            return NULL; /* the parent of / is / */
        }
        char *slash = strrchr(name, '/');
        slash[slash == name] = '\0';
        dir = parent;
    }
    return strerror(errno);
}

static const char replaced[] = "it was replaced while it was looked at";

static bool same_file(int dir, const char *name, const struct stat *st)
{
    struct stat again;

    return !fstatat(dir, name, &again, AT_SYMLINK_NOFOLLOW) && again.st_ino == st->st_ino &&
           again.st_dev == st->st_dev;
}

static const char *resolve_once(const char *path, bool trusted, char canonical[PATH_MAX])
{
    char link[32], above[PATH_MAX];
    struct stat st;
    const char *cause;
    int fd = open(path, O_PATH | O_CLOEXEC);

    snprintf(canonical, PATH_MAX, "%s", path);
    if (fd < 0 || fstat(fd, &st))
        return strerror(errno);
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, canonical, PATH_MAX - 1);
    close(fd);
    if (length <= 0)
        return "its name cannot be read from /proc/self/fd";
    canonical[length] = '\0';
    if (!trusted)
        return same_file(AT_FDCWD, canonical, &st) ? NULL : replaced;

    cause = distrust(&st, false);
    if (cause)
        return cause;
    strcpy(above, canonical);
    char *slash = strrchr(above, '/');
    slash[slash == above] = '\0';
    int dir = open(above, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return strerror(errno);
    /* The name leads to the file that was looked at; once all above it is root's, it always will. */
    if (!same_file(dir, strrchr(canonical, '/') + 1, &st)) {
        close(dir);
        return replaced;
    }
    cause = distrust_above(dir, above);
    if (cause)
        strcpy(canonical, above);
    return cause;
}

const char *resolve(const char *path, bool trusted, char canonical[PATH_MAX])
{
    enum { ATTEMPTS = 100 };
    const char *cause = replaced;

    /* An upgrade of the package renames a new file over the old one; the next look finds the new one. */
    for (int attempt = 0; attempt < ATTEMPTS && cause == replaced; attempt++)
        cause = resolve_once(path, trusted, canonical);
    if (cause == replaced)
        snprintf(canonical, PATH_MAX, "%s", path); /* not the old name with " (deleted)" behind it */
    return cause;
}
