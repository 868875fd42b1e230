/* Links where the image's own loaders search, to libraries that were mounted in other directories. A loader cache is not
 * enough: musl reads none, and neither do programs that look into the directories themselves. */
#include "_steps.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_FILE_MAX = 2048, LINKS_MAX = 256 };

#define VDPAU "/vdpau" /* libvdpau searches this subdirectory */
#ifdef __x86_64__
#define ARCH "x86_64"
#else
#define ARCH "aarch64"
#endif
#define C_LIBRARY "libc.so.6"
#define MUSL "/lib/ld-musl-" ARCH ".so.1"
#define MUSL_PATH "/etc/ld-musl-" ARCH ".path"
#define MUSL_DEFAULT "/usr/lib"

/* Where glibc's loader searches, as Debian, Fedora and Arch build it: it is with the C library. */
static const char *const GLIBC[][2] = {
    {"/lib/" ARCH "-linux-gnu/" C_LIBRARY, "/usr/lib/" ARCH "-linux-gnu"},
    {"/lib64/" C_LIBRARY, "/usr/lib64"},
    {"/lib/" C_LIBRARY, "/usr/lib"},
};

static bool is_there(struct nvc_steps *s, const char *path, uint64_t flags)
{
    int fd = look(s, s->rootfs, path, O_PATH | flags);

    shut(fd);
    return fd >= 0;
}

static const char *glibc_directory(struct nvc_steps *s)
{
    for (size_t i = 0; i < sizeof(GLIBC) / sizeof(GLIBC[0]); i++)
        if (is_there(s, GLIBC[i][0], 0))
            return GLIBC[i][1];
    return NULL;
}

/* The directory in which the image's musl searches, or "": of its list that without an architecture, if it is on it. */
static void musl_directory(struct nvc_steps *s, char out[NVC_STEPS_PATH])
{
    struct buffer list = {.bytes = NULL};

    out[0] = '\0';
    if (!is_there(s, MUSL, 0))
        return;
    int fd = look_regular(s, s->rootfs, MUSL_PATH);
    if (fd < 0) {
        strcpy(out, MUSL_DEFAULT);
        return;
    }
    bool whole = read_some(s, fd, &list, PATH_FILE_MAX);
    close(fd);
    steps_add(s, &list, "", 1);
    for (char *at = list.bytes, *rest = NULL; whole && !s->failed; at = NULL) {
        const char *item = strtok_r(at, ":\n", &rest);
        if (item == NULL)
            break;
        bool usable =
            item[0] == '/' && is_plain(item) && !strstr(item, "..") && is_there(s, item, O_DIRECTORY);
        if (usable && (!out[0] || strcmp(item, MUSL_DEFAULT) == 0))
            strcpy(out, item);
    }
    if (!out[0])
        steps_warn(s, "%s names no directory of the image: musl finds no library of the driver", MUSL_PATH);
    free(list.bytes);
}

static bool same_directory(struct nvc_steps *s, const char *one, const char *other)
{
    return is_same_place(s, s->rootfs, one, other, O_DIRECTORY);
}

/* What `path` is called in `directory`, if one of the `bases` has it, the innermost; false: none has. */
static bool mirrored(struct nvc_steps *s, const struct rows *bases, const char *directory, const char *path,
                     char out[NVC_STEPS_PATH])
{
    size_t most = 0;

    for (size_t i = 0; i < bases->count; i++) {
        size_t length = strlen(bases->at[i].a);
        if (length > most && strncmp(path, bases->at[i].a, length) == 0 && path[length] == '/')
            most = length;
    }
    return most > 0 && steps_join(s, out, directory, path + most + 1);
}

/* Whether `directory` is missing yet, or of the rootfs: what belongs to the host stays as it is. */
static bool is_of_image(struct nvc_steps *s, const char *directory)
{
    int fd = look(s, s->rootfs, directory, O_PATH | O_DIRECTORY);
    bool own = fd < 0 || mount_of(s, fd) == s->root_mount;

    shut(fd);
    return own;
}

/* Has each name that leads to a library of a folder also be one in `directory`. */
static void link_there(struct nvc_steps *s, const char *directory)
{
    struct rows bases = {.at = NULL};
    char base[NVC_STEPS_PATH], target[NVC_STEPS_PATH];
    size_t planned = s->links.count, most = planned + LINKS_MAX;

    if (!is_of_image(s, directory))
        return;
    for (size_t i = 0; i < s->folders.count; i++) {
        const char *folder = s->folders.at[i].a;
        size_t length = strlen(folder), tail = sizeof(VDPAU) - 1;
        bool below = length > tail && strcmp(folder + length - tail, VDPAU) == 0;
        snprintf(base, sizeof(base), "%.*s", (int)(below ? length - tail : length), folder);
        if (!same_directory(s, base, directory))
            rows_add(s, &bases, base, NULL, NULL);
    }
    for (size_t i = 0; i < s->entries.count && s->links.count < most && !s->failed; i++) {
        const struct row *entry = &s->entries.at[i];
        char place[NVC_STEPS_PATH];
        if (strcmp(entry->c, s->machine) != 0 || !mirrored(s, &bases, directory, entry->b, target))
            continue;
        snprintf(place, sizeof(place), "%.*s", (int)(strrchr(target, '/') - target), target);
        if (steps_join(s, target, place, entry->a)) /* its own name, also where the folder's is in the way */
            place_link(s, entry->b, target);
    }
    for (size_t i = 0; i < planned && s->links.count < most && !s->failed; i++)
        if (mirrored(s, &bases, directory, s->links.at[i].b, target))
            place_link(s, s->links.at[i].b, target);
    if (s->links.count >= most)
        steps_warn(s, "%s: gets links to %d libraries, and to no more", directory, LINKS_MAX);
    rows_free(&bases);
}

void place_libraries(struct nvc_steps *s)
{
    const char *glibc = glibc_directory(s);
    char musl[NVC_STEPS_PATH];

    musl_directory(s, musl);
    if (glibc)
        link_there(s, glibc);
    if (musl[0] && !(glibc && same_directory(s, musl, glibc)))
        link_there(s, musl);
}
