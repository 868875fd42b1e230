/* The registry of slices, for a container of a claim: its slice is there already, and the container only joins it. The
 * rules are those of `held`, `join` and `_check_holds` in nvc/slices/store/registry.py. */
#include "cdi.h"
#include "files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCK_MS 10000
#define ABOUT_MAX (1u << 20)
#define ENTRIES_MAX 4096
#define UUID_MAX 80
#define DIRECTORY (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

static bool is_own(const struct stat *st)
{
    return st->st_uid == geteuid() && !(st->st_mode & 022);
}

/* All of a file of this user alone, with a NUL behind it; NULL where it cannot be had. */
static char *read_own(int directory, const char *name, size_t most, size_t *size)
{
    int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat st;
    char *text = NULL;

    if (fd < 0)
        return NULL;
    bool whole =
        fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && is_own(&st) && cdi_read(fd, most, &text, size);
    close(fd);
    char *ended = whole ? realloc(text, *size + 1) : NULL;
    if (!ended) {
        free(text);
        return NULL;
    }
    ended[*size] = '\0';
    return ended;
}

static bool is_key(const char *name)
{
    int parts = 1;

    for (const char *at = name; *at; at++) {
        bool figure = (*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'f');
        if (*at != '-' ? !figure : at == name || at[-1] == '-' || ++parts > 4)
            return false;
    }
    return parts == 4 && name[strlen(name) - 1] != '-';
}

/* The place in a claim of a slice, which stands behind UUID=BYTES,CORES,WEIGHT,POLICY and is all that does; 0 where it
 * is no such slice. */
static size_t hold_of(const char *slice, const char **hold)
{
    const char *comma = strchr(slice, '=');

    for (int i = 0; i < 4 && comma; i++)
        comma = strchr(comma + 1, ',');
    *hold = comma ? comma + 1 : "";
    size_t length = strlen(*hold);
    return strspn(*hold, "0123456789abcdefABCDEF-") == length ? length : 0;
}

/* The holds of all slices of a container; NULL where one is not of a claim. */
static char *holds_of(const struct cdi_given *given)
{
    char *holds = NULL;
    size_t size = 0;
    bool all = given->slice_count > 0;
    FILE *out = open_memstream(&holds, &size);

    if (!out)
        return NULL;
    for (size_t i = 0; i < given->slice_count && all; i++) {
        const char *hold;
        all = hold_of(given->slices[i], &hold) > 0;
        fprintf(out, "%s%s", i ? " " : "", hold);
    }
    if (fclose(out) == 0 && all)
        return holds;
    free(holds);
    return NULL;
}

/* Opens the registry. */
static int open_base(char path[PATH_MAX])
{
    struct stat st;

    if (cdi_directory(path) < 0)
        return -1;
    strcat(path, "/vgpu");
    int fd = open(path, DIRECTORY);
    if (fd >= 0 && (fstat(fd, &st) < 0 || !is_own(&st))) {
        close(fd);
        fd = -1;
    }
    return fd;
}

enum found { NOT_THERE, THERE, UNKNOWN };

/* Compares an entry's holds with `holds`: whether it is the slice of a claim that has just these. UNKNOWN: it cannot be
 * read, or it has some of them, and a container has joined it: Python tells whether that lives. */
static enum found compare(int base, const char *name, const char *holds)
{
    size_t size, length = 0, claim_length = 0, rootfs_length = 0;
    int directory = openat(base, name, DIRECTORY);
    char *about = directory < 0 ? NULL : read_own(directory, "about", ABOUT_MAX, &size);
    enum found result = UNKNOWN;

    if (about && about_is_whole(about, size)) {
        const char *own = about_value(about, size, "holds", &length);
        bool claim = about_value(about, size, "claim", &claim_length) && claim_length;
        bool joined = !about_value(about, size, "rootfs", &rootfs_length) || rootfs_length;
        if (!own || !words_meet(own, length, holds, strlen(holds)))
            result = NOT_THERE;
        else if (claim && words_equal(own, length, holds, strlen(holds)))
            result = THERE;
        else if (claim && !joined)
            result = NOT_THERE;
    }
    free(about);
    if (directory >= 0)
        close(directory);
    return result;
}

/* Goes through all entries; the name of the one that has `holds`. False where there is none, or one is in doubt. */
static bool search(int base, const char *holds, char name[NAME_MAX + 1])
{
    int copy = openat(base, ".", DIRECTORY);
    DIR *entries = copy < 0 ? NULL : fdopendir(copy);
    struct dirent *entry = NULL;
    size_t there = 0, count = 0;
    bool doubt = entries == NULL;

    while (!doubt && (errno = 0, entry = readdir(entries)) != NULL) {
        if (!is_key(entry->d_name))
            continue;
        enum found found = compare(base, entry->d_name, holds);
        if (found == THERE) {
            snprintf(name, NAME_MAX + 1, "%s", entry->d_name);
            there++;
        }
        doubt = found == UNKNOWN || ++count > ENTRIES_MAX;
    }
    doubt = doubt || errno != 0;
    if (entries)
        closedir(entries);
    else if (copy >= 0)
        close(copy);
    return !doubt && there == 1;
}

bool cdi_slice_find(const struct cdi_container *container, struct cdi_slice *slice)
{
    char name[NAME_MAX + 1];
    size_t size;

    *slice = (struct cdi_slice){.quota = -1, .ledger = -1, .empty = -1};
    slice->holds = holds_of(container->given);
    int base = slice->holds ? open_base(slice->directory) : -1;
    if (base < 0)
        return false;
    bool found = search(base, slice->holds, name);
    int directory = found ? openat(base, name, DIRECTORY) : -1;
    close(base);
    if (directory < 0)
        return false;
    char *text = read_own(directory, "start", RECIPE_MAX, &size);
    close(directory);
    size_t length = strlen(slice->directory);
    return snprintf(slice->directory + length, PATH_MAX - length, "/%s", name) < (int)(PATH_MAX - length) &&
           text && recipe_parse(text, size, NVC_VERSION, &slice->recipe);
}

bool cdi_has_policies(const struct recipe *recipe)
{
    char path[PATH_MAX], uuid[UUID_MAX + 1];
    struct stat st;

    if (cdi_directory(path) < 0)
        return true;
    strcat(path, "/vgpu-policy");
    int directory = open(path, DIRECTORY);
    if (directory < 0)
        return errno != ENOENT;
    bool found = fstat(directory, &st) < 0 || !is_own(&st);
    for (size_t i = 0; i < recipe->slices.count && !found; i++) {
        size_t length = strcspn(recipe->slices.at[i], "=/");
        found = length > UUID_MAX || recipe->slices.at[i][length] != '=';
        snprintf(uuid, sizeof(uuid), "%.*s", (int)length, recipe->slices.at[i]);
        found = found || fstatat(directory, uuid, &st, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
    }
    close(directory);
    return found;
}

/* Opens what is to be mounted; -1 where it is not what it should be. */
static int open_source(int directory, const char *name, mode_t kind, off_t size)
{
    struct stat st;
    int fd = openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);

    if (fd >= 0 && fstat(fd, &st) == 0 && (st.st_mode & S_IFMT) == kind && is_own(&st) &&
        (size < 0 || st.st_size == size))
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Replaces `about` atomically. */
static bool write_about(int directory, const char *text, size_t size)
{
    unlinkat(directory, ".about", 0);
    int fd = openat(directory, ".about", O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    bool written = fchmod(fd, 0600) == 0 && write(fd, text, size) == (ssize_t)size;
    close(fd);
    return written && renameat(directory, ".about", directory, "about") == 0;
}

/* The rest of `cdi_slice_join`, while nobody else changes slices. */
static bool join_locked(int base, const struct cdi_container *container, struct cdi_slice *slice)
{
    char name[NAME_MAX + 1];
    size_t size, made_size;
    struct stat st;

    if (!search(base, slice->holds, name) || strcmp(name, strrchr(slice->directory, '/') + 1) != 0)
        return false;
    int directory = openat(base, name, DIRECTORY);
    if (directory < 0)
        return false;
    slice->quota = open_source(directory, "quota", S_IFREG, -1);
    slice->ledger = open_source(directory, "ledger", S_IFDIR, -1);
    slice->empty = open_source(base, "empty", S_IFREG, 0);
    /* Tenants own what is in the ledger's directory, and may have changed it. */
    bool sound = slice->quota >= 0 && slice->ledger >= 0 && slice->empty >= 0 &&
                 fstatat(directory, "ready", &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                 fstatat(slice->ledger, "ledger", &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
                 (uint64_t)st.st_size == slice->recipe.ledger;
    char *about = sound ? read_own(directory, "about", ABOUT_MAX, &size) : NULL;
    char *made =
        about ? about_of(about, size, container->rootfs_path, container->id, container->bundle, &made_size)
              : NULL;
    bool joined = made && write_about(directory, made, made_size);
    free(made);
    free(about);
    close(directory);
    return joined;
}

bool cdi_slice_join(const struct cdi_container *container, struct cdi_slice *slice)
{
    char path[PATH_MAX];
    int base = open_base(path);

    if (base < 0)
        return false;
    bool joined = nvc_lock(base, LOCK_MS) == 0 && join_locked(base, container, slice);
    close(base); /* and with it the lock goes */
    return joined;
}
