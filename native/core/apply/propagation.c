/* Where else a new mount would appear. A mount that is attached below a shared one is copied to every peer of that one
 * and to what receives from it (mount_namespaces(7)): below a volume that is shared with the host it would appear on the
 * host, and stay there when the container is gone. */
#include "_apply.h"
#include "files.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIST_MAX                                                                                            \
    (64u << 20) /* bytes of a list of mounts: more than 100,000 mounts (sysctl fs.mount-max) have */
#define FIRST_PROCESS "1"

/* What one line of a list of mounts says; 0: no such group. */
struct line {
    uint64_t id, shared, master;
};

/* A list of mounts (proc(5), mountinfo) as text; NULL with errno where it cannot be had. */
static char *read_list(int directory, const char *path)
{
    struct buffer text = {.bytes = NULL};
    int fd = openat(directory, path, O_RDONLY | O_CLOEXEC);
    bool whole = fd >= 0 && buffer_read(&text, fd, LIST_MAX) && buffer_add(&text, "", 1);
    int saved = errno;

    shut(fd);
    if (!whole)
        free(text.bytes);
    errno = saved;
    return whole ? text.bytes : NULL;
}

static uint64_t number_after(const char *from, const char *end, const char *name)
{
    const char *at = memmem(from, (size_t)(end - from), name, strlen(name));
    return at ? strtoull(at + strlen(name), NULL, 10) : 0;
}

/* The line at `*text`, which goes on to the next one; false at the end. Paths have no blanks: the kernel escapes them. */
static bool next_line(const char **text, struct line *found)
{
    const char *start = *text, *fields = start, *end = strchr(start, '\n');

    if (end == NULL)
        return false;
    for (int blanks = 0; blanks < 6 && fields < end; fields++)
        blanks += *fields == ' ';
    const char *last = memmem(fields, (size_t)(end - fields), "- ", 2); /* behind the optional fields */
    last = last ? last : end;
    found->id = strtoull(start, NULL, 10);
    found->shared = number_after(fields, last, "shared:");
    found->master = number_after(fields, last, "master:");
    *text = end + 1;
    return true;
}

static bool find_mount(const char *text, uint64_t id, struct line *found)
{
    while (text != NULL && next_line(&text, found))
        if (found->id == id)
            return true;
    return false;
}

/* The container's mount with that number. The list is read again where it does not have it: the mount may be new. */
static bool find_inside(struct applier *a, uint64_t id, struct line *found)
{
    if (find_mount(a->inside, id, found))
        return true;
    free(a->inside);
    a->inside = read_list(a->descriptors, "../mountinfo");
    errno = a->inside == NULL ? errno : ENOENT;
    return find_mount(a->inside, id, found);
}

static bool has(const struct buffer *set, uint64_t number)
{
    for (size_t at = 0; at < set->size; at += sizeof(number))
        if (memcmp(set->bytes + at, &number, sizeof(number)) == 0)
            return true;
    return false;
}

static int add(struct buffer *set, uint64_t number)
{
    return buffer_add(set, &number, sizeof(number)) ? 0 : -1;
}

/* Adds the groups of one process's mounts. A list that has `root`, the container's own, is the container's. What only
 * receives is counted on the host: elsewhere it may be a namespace that the container has made itself. */
static int add_groups(struct applier *a, int proc, const char *name, uint64_t root,
                      struct buffer *namespaces)
{
    char path[64];
    struct line line;
    int result = 0;
    bool first = strcmp(name, FIRST_PROCESS) == 0;

    snprintf(path, sizeof(path), "%.32s/mountinfo", name);
    char *text = read_list(proc, path);
    if (text == NULL) /* what the kernel says of a process that has ended */
        return !first && (errno == ENOENT || errno == ESRCH || errno == EINVAL) ? 0 : -1;
    const char *at = text;
    /* A mount is in one namespace: so the first one tells which. */
    if (next_line(&at, &line) && !has(namespaces, line.id)) {
        result = add(namespaces, line.id);
        at = find_mount(text, root, &line) ? "" : text;
        while (result == 0 && next_line(&at, &line)) {
            if (line.shared && !has(&a->outside, line.shared))
                result = add(&a->outside, line.shared);
            if (first && line.master && result == 0)
                result = add(&a->outside, line.master);
        }
    }
    free(text);
    return result;
}

/* Collects the groups that mounts of other namespaces are in; once, when they are first needed. */
static int look_outside(struct applier *a, uint64_t root)
{
    struct buffer namespaces = {.bytes = NULL};
    struct dirent *entry;
    int fd = a->outside.bytes ? -1 : openat(a->descriptors, "../..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *proc = fd < 0 ? NULL : fdopendir(fd);

    if (a->outside.bytes != NULL)
        return 0;
    int result = proc == NULL ? -1 : add(&a->outside, 0);
    if (result == 0)
        result = add_groups(a, fd, FIRST_PROCESS, root, &namespaces);
    while (result == 0 && (errno = 0, entry = readdir(proc)) != NULL)
        if (isdigit((unsigned char)entry->d_name[0]) && strcmp(entry->d_name, FIRST_PROCESS) != 0)
            result = add_groups(a, fd, entry->d_name, root, &namespaces);
    result = result == 0 && errno ? -1 : result;
    int saved = errno;
    free(namespaces.bytes);
    if (proc != NULL)
        closedir(proc);
    errno = saved;
    return result;
}

/* Refuses, with EREMOTE, to mount where others would get the mount too. The rootfs's own mount may be shared, and so may
 * what shares with it: there the runtime has decided. Not so where the rootfs is a directory of a mount, as gVisor
 * takes it. */
int stays_inside(struct applier *a, const struct place *place, int target)
{
    struct nvc_identity here, root;
    struct line line, own;

    if (a->target->keep) /* no container: the host's mounts are meant */
        return 0;
    int result = nvc_identity(target, &here);
    if (result == 0)
        result = nvc_identity(a->target->rootfs, &root);
    if (result < 0)
        return fail(a, -result, "stat mount", place->path);
    bool decided = a->target->mount_namespace < 0 || root.is_mount_root;
    if (decided && here.mount == root.mount)
        return 0;
    if (!find_inside(a, here.mount, &line))
        return fail(a, errno, "read the container's mounts", place->path);
    if (!line.shared || (decided && find_inside(a, root.mount, &own) && own.shared == line.shared))
        return 0;
    if (look_outside(a, root.mount) < 0)
        return fail(a, errno, "read the host's mounts", place->path);
    if (!has(&a->outside, line.shared))
        return 0;
    return fail_as(a, NVC_FAILED_SHARED, EREMOTE, "mount operation failed", place->path);
}
