/* Copies of libraries in an image that programs would load in place of a shim, such as a second libcuda.
 *
 * Searched are the directories in which a loader looks: those of the image's loader cache, those that the caller names,
 * and CUDA's forward-compatibility directories. All of it is the image's: names and counts are bounded. */
#include "_ldcache.h"
#include "_steps.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define COMPAT_PARENT "/usr/local" /* CUDA's directories are below it, one for each version */
enum { COMPAT_MAX = 256, DEPTH = 5 };

/* What there are shims for. A file counts by its name: what ldconfig finds by its SONAME has a link of it. */
static const struct {
    const char *stem, *soname;
} SHIMS[] = {{"libcuda.so", "libcuda.so.1"}, {"libnvidia-ml.so", "libnvidia-ml.so.1"}};
/* Where a forward-compatibility directory has libraries. */
static const char *const BELOW[] = {"", "/lib", "/lib.real"};
#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

/* Files by device and inode, directories by their mount too: what is mounted on a file in one does not cover the same
 * file in another mount of that directory. */
struct file {
    uint64_t device, inode, mount;
};

struct search {
    struct nvc_steps *s;
    struct buffer known; /* files: the shims */
    struct buffer seen;  /* and directories */
    struct rows
        covered; /* libraries, by the path that links to them lead to: hard links are covered one by one */
    struct rows directories;
    size_t shadows;
};

static bool has_file(const struct buffer *files, const struct stat *st, uint64_t mount)
{
    const struct file file = {st->st_dev, st->st_ino, mount};

    for (size_t at = 0; at < files->size; at += sizeof(file))
        if (memcmp(files->bytes + at, &file, sizeof(file)) == 0)
            return true;
    return false;
}

static void add_file(struct nvc_steps *s, struct buffer *files, const struct stat *st, uint64_t mount)
{
    steps_add(s, files, &(struct file){st->st_dev, st->st_ino, mount}, sizeof(struct file));
}

/* The shim that programs would miss for a file of this name; -1: none. */
static int shim_of(const char *name)
{
    for (size_t i = 0; i < COUNT(SHIMS); i++) {
        size_t length = strlen(SHIMS[i].stem);
        if (strncmp(name, SHIMS[i].stem, length) == 0 && (name[length] == '\0' || name[length] == '.'))
            return (int)i;
    }
    return -1;
}

/* The names in a directory that `wanted` takes, sorted. Nobody reads a hostile one to its end: what is behind may be a
 * copy, so that it is a failure. */
static void names_of(struct nvc_steps *s, int directory, const char *path, bool (*wanted)(const char *),
                     struct rows *names)
{
    int copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = copy < 0 ? NULL : fdopendir(copy);
    struct dirent *entry = NULL;
    size_t count = 0;

    while (entries != NULL && (errno = 0, entry = readdir(entries)) != NULL && count++ < NVC_STEPS_NAMES_MAX)
        if (wanted(entry->d_name))
            rows_add(s, names, entry->d_name, NULL, NULL);
    if (entry != NULL)
        steps_fail(s, EFBIG, "read directory of the image", path);
    else if (tells_nothing(errno))
        steps_fail(s, errno, "read directory of the image", path);
    if (entries != NULL)
        closedir(entries);
    else
        shut(copy);
    rows_sort(names);
}

static bool is_searched(const char *name)
{
    return shim_of(name) >= 0 || search_is_before(name);
}

static bool is_of_cuda(const char *name)
{
    return strncmp(name, "cuda", 4) == 0;
}

/* Whether `path` is an ELF file, and which one. `name` is what the kernel calls it, "" where that is too long. */
static bool library_at(struct nvc_steps *s, const char *path, struct stat *st, char name[NVC_STEPS_PATH])
{
    char magic[4], link[32];
    int fd = look_regular(s, s->rootfs, path);

    if (fd < 0)
        return false;
    ssize_t got = fstat(fd, st) < 0 ? -1 : pread(fd, magic, sizeof(magic), 0);
    if (got < 0 && tells_nothing(errno))
        steps_fail(s, errno, "read library of the image", path);
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, name, NVC_STEPS_PATH);
    name[length > 0 && length < NVC_STEPS_PATH ? length : 0] = '\0';
    close(fd);
    return got == (ssize_t)sizeof(magic) && memcmp(magic, "\177ELF", 4) == 0;
}

/* Opens a directory that has not been seen by another name; -1: it has, or there is none. `flags` are open(2)'s. */
static int open_unseen(struct search *in, const char *path, int flags)
{
    struct stat st;
    int fd = look(in->s, in->s->rootfs, path, (uint64_t)(O_RDONLY | O_DIRECTORY | flags));

    if (fd < 0)
        return -1;
    uint64_t mount = mount_of(in->s, fd);
    bool known = fstat(fd, &st) == 0;
    if (!known)
        steps_fail(in->s, errno, "look into directory of the image", path);
    if (known && !has_file(&in->seen, &st, mount)) {
        if (in->seen.size == NVC_STEPS_SEARCHED_MAX * sizeof(struct file))
            steps_fail(in->s, EOVERFLOW, "make a slice", path);
        else
            add_file(in->s, &in->seen, &st, mount);
        return fd;
    }
    close(fd);
    return -1;
}

/* Looks into one directory, and into those below it that loaders prefer, `depth` of them in each other: how many
 * libraries there are. With `cover`, those that are no shim yet are recorded, and the directories that have any. */
static size_t look_into(struct search *in, const char *directory, int flags, bool cover, int depth)
{
    struct nvc_steps *s = in->s;
    struct rows names = {.at = NULL};
    char path[NVC_STEPS_PATH], name[NVC_STEPS_PATH];
    struct stat st;
    size_t found = 0, below = 0;
    int fd = open_unseen(in, directory, flags);

    if (fd < 0)
        return 0;
    names_of(s, fd, directory, is_searched, &names);
    close(fd);
    for (size_t i = 0; i < names.count && !s->failed; i++) {
        int shim = shim_of(names.at[i].a);
        if ((shim < 0 && depth == 0) || !steps_join(s, path, directory, names.at[i].a))
            continue;
        if (shim < 0)
            below += look_into(in, path, cover ? 0 : O_NOFOLLOW, cover, depth - 1);
        if (shim < 0 || !library_at(s, path, &st, name))
            continue;
        found++;
        if (!cover || has_file(&in->known, &st, 0) || (*name && rows_have(&in->covered, name)))
            continue;
        rows_add(s, &in->covered, name, NULL, NULL);
        steps_record(s, NVC_STEPS_SHADOW, path, SHIMS[shim].soname, NULL);
        if (++in->shadows > NVC_STEPS_SHADOWS_MAX)
            steps_fail(s, E2BIG, "make a slice", directory);
    }
    rows_free(&names);
    if (cover && found)
        steps_record(s, NVC_STEPS_PLACE, directory, NULL, NULL);
    return found + below;
}

/* Directories of these libraries in the image's loader cache. What the loader cannot read names no library either. */
static void add_cached(struct search *in)
{
    struct nvc_steps *s = in->s;
    struct buffer content = {.bytes = NULL};
    struct ldcache_view view = {.bytes = NULL};
    char directory[NVC_STEPS_PATH];
    bool found = read_cache(s, &content, &view);

    for (size_t i = 0; found && i < view.count && !s->failed; i++) {
        const char *path = view.records[i].path, *slash = strrchr(path, '/');
        bool named = false;
        for (size_t j = 0; j < COUNT(SHIMS); j++)
            named = named || strncmp(view.records[i].name, SHIMS[j].stem, strlen(SHIMS[j].stem)) == 0;
        if (!named || path[0] != '/' || (size_t)(slash - path) >= sizeof(directory))
            continue;
        memcpy(directory, path, (size_t)(slash - path));
        directory[slash - path] = '\0';
        search_add(s, &in->directories, directory);
    }
    free(view.records);
    free(content.bytes);
}

/* The directories of forward-compatibility libraries that the container does not use are hidden. All of them are seen
 * then, lest LD_LIBRARY_PATH bring one up again; but not those that are elsewhere, to which links below them lead. */
static void hide_compat(struct search *in, const char *compat)
{
    struct nvc_steps *s = in->s;
    struct rows names = {.at = NULL};
    char base[NVC_STEPS_PATH], path[NVC_STEPS_PATH + 16];
    int fd = look(s, s->rootfs, COMPAT_PARENT, O_RDONLY | O_DIRECTORY);

    if (fd < 0)
        return;
    names_of(s, fd, COMPAT_PARENT, is_of_cuda, &names);
    close(fd);
    for (size_t i = 0; i < names.count && i < COMPAT_MAX && !s->failed; i++) {
        size_t found = 0;
        snprintf(base, sizeof(base), "%s/%.255s/compat", COMPAT_PARENT, names.at[i].a);
        bool same = *compat && is_same_place(s, s->rootfs, base, compat, O_DIRECTORY);
        for (size_t j = 0; !same && j < COUNT(BELOW); j++) {
            snprintf(path, sizeof(path), "%s%s", base, BELOW[j]);
            found += look_into(in, path, j > 0 ? O_NOFOLLOW : 0, false, DEPTH);
        }
        if (found)
            steps_record(s, NVC_STEPS_HIDDEN, base, NULL, NULL);
    }
    rows_free(&names);
}

int nvc_steps_shadows(struct nvc_steps *s, const char *libraries, const char *compat,
                      const char *const *search, size_t count, const struct nvc_steps_file *shims,
                      size_t shim_count)
{
    struct search in = {.s = s};
    char path[NVC_STEPS_PATH];

    for (size_t i = 0; i < shim_count; i++)
        add_file(s, &in.known, &(struct stat){.st_dev = shims[i].device, .st_ino = shims[i].inode}, 0);
    if (!s->failed)
        hide_compat(&in, compat);
    search_add(s, &in.directories, libraries);
    for (size_t i = 0; *compat && i < COUNT(BELOW); i++)
        if (snprintf(path, sizeof(path), "%s%s", compat, BELOW[i]) < (int)sizeof(path))
            search_add(s, &in.directories, path);
    if (!s->failed)
        add_cached(&in);
    for (size_t i = 0; i < count && !s->failed; i++)
        search_item(s, &in.directories, search[i]);
    for (size_t i = 0; i < in.directories.count && !s->failed; i++)
        look_into(&in, in.directories.at[i].a, 0, true, DEPTH);
    rows_free(&in.directories);
    free(in.known.bytes);
    free(in.seen.bytes);
    rows_free(&in.covered);
    return s->failed ? -1 : 0;
}
