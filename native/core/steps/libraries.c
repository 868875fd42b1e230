/* Which libraries of a folder the engine has put there, and what the loader is to know of them.
 *
 * ldconfig would read every file of the folder again. The image's own libraries are in its cache already, though; new are
 * only those that were mounted: they are mounts themselves, or all that a mounted folder has. */
#include "_steps.h"
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FOLDERS_MAX = 256, NAMES_MAX = 16384, LISTED_MAX = 262144, ENTRIES_MAX = 1000 };

/* The folder that is being looked at. */
struct folder {
    const char *path;
    int fd;
    bool whole; /* it is mounted itself */
};

struct found {
    struct nvc_steps *s;
    struct rows planned; /* SONAME links: text, target */
    size_t left_out;
    char version[NVC_STEPS_PATH];
};

/* Reads a library that was mounted; false where it is none. */
static bool examine(struct nvc_steps *s, const struct folder *folder, const char *name, struct nvc_elf *elf)
{
    struct stat st;
    int fd = strstr(name, ".so") && is_plain(name) ? look(s, folder->fd, name, O_PATH | O_NOFOLLOW) : -1;

    if (fd < 0)
        return false;
    int mounted = folder->whole ? 1 : nvc_is_mount_root(fd);
    bool known = fstat(fd, &st) == 0 && mounted >= 0;
    if (!known)
        steps_fail(s, mounted < 0 ? -mounted : errno, "look at library", name);
    bool ours = known && S_ISREG(st.st_mode) && mounted;
    int readable = ours ? reopen(s, fd, name) : -1;
    close(fd);
    if (readable < 0)
        return false;
    int result = nvc_elf_read(readable, elf);
    close(readable);
    if (result < 0) {
        if (tells_nothing(-result))
            steps_fail(s, -result, "read library", name);
        return false;
    }
    return strchr(elf->soname, '/') == NULL && strcmp(elf->soname, ".") != 0 &&
           strcmp(elf->soname, "..") != 0 && is_plain(elf->soname) && elf_arch(elf) != NULL;
}

static struct row *find(const struct rows *rows, const char *target)
{
    for (size_t i = 0; i < rows->count; i++)
        if (strcmp(rows->at[i].b, target) == 0)
            return &rows->at[i];
    return NULL;
}

/* A later file of the same SONAME and architecture wins. What the loader cache has no room for is only counted: an
 * image's volume may have many thousand libraries, and each is compared with all that are kept. */
static void set_entry(struct found *found, const char *soname, const char *path, const char *arch)
{
    struct nvc_steps *s = found->s;

    for (size_t i = 0; i < s->entries.count; i++) {
        struct row *row = &s->entries.at[i];
        if (strcmp(row->a, soname) == 0 && strcmp(row->c, arch) == 0) {
            rows_set(s, &row->b, path);
            return;
        }
    }
    if (s->entries.count < ENTRIES_MAX)
        rows_add(s, &s->entries, soname, path, arch);
    else
        found->left_out++;
}

/* ldconfig's cache also names the link without a version, such as libcuda.so, by which some programs open a library. */
static void take_link(struct found *found, const struct folder *folder, const char *name,
                      const struct nvc_elf *elf)
{
    struct nvc_steps *s = found->s;
    char link[NVC_STEPS_PATH], target[NVC_STEPS_PATH], text[NVC_STEPS_PATH];
    size_t length = (size_t)(strstr(name, ".so") - name) + 3; /* examine() has looked for it */

    if (name[length] == '\0')
        return;
    snprintf(link, sizeof(link), "%.*s", (int)length, name);
    if (!steps_join(s, target, folder->path, link))
        return;
    const struct row *planned = find(&s->links, target);
    ssize_t size = planned ? -1 : readlinkat(folder->fd, link, text, sizeof(text) - 1);
    text[size > 0 ? size : 0] = '\0';
    const char *to = planned ? planned->a : text; /* the SONAME's own link may be yet to be made */
    if (to[0] && (strcmp(to, elf->soname) == 0 || strcmp(to, name) == 0))
        set_entry(found, link, target, elf_arch(elf));
}

static void take_library(struct found *found, const struct folder *folder, const char *name,
                         const struct nvc_elf *elf)
{
    struct nvc_steps *s = found->s;
    const char *soname = elf->soname[0] ? elf->soname : name;
    bool other = strcmp(soname, name) != 0;
    char entry[NVC_STEPS_PATH], own[NVC_STEPS_PATH];

    if (strncmp(name, "libcuda.so.", 11) == 0) {
        int dots = 0;
        for (const char *at = name; *at; at++)
            dots += *at == '.';
        if (dots > 2)
            strcpy(found->version, name + 11); /* a name is shorter than a path */
    }
    if (!steps_join(s, entry, folder->path, soname) || !steps_join(s, own, folder->path, name))
        return;
    const char *path = entry;
    if (other && !folder->whole) {
        if (find(&s->links, entry) || kind_at(s, folder->fd, soname) != OTHER) {
            struct row *planned = find(&found->planned, entry);
            if (planned) /* for an earlier file of the same SONAME */
                rows_set(s, &planned->a, name);
            else
                rows_add(s, &found->planned, name, entry, NULL);
        } else if (!is_same_place(s, folder->fd, soname, name, 0)) {
            steps_warn(s, "%s of the image stays; the loader cache names %s beside it", entry, name);
            path = own;
        }
    } else if (other && !is_same_place(s, folder->fd, soname, name, 0)) {
        path = own;
    }
    set_entry(found, soname, path, elf_arch(elf));
    take_link(found, folder, name, elf);
}

/* Of two files with one SONAME the later name wins, as libx.so.10 over libx.so.9. */
static int by_length(const void *one, const void *other)
{
    const char *a = ((const struct row *)one)->a, *b = ((const struct row *)other)->a;
    size_t first = strlen(a), second = strlen(b);

    return first != second ? (first < second ? -1 : 1) : strcmp(a, b);
}

static void look_into(struct found *found, const char *path)
{
    struct nvc_steps *s = found->s;
    struct folder folder = {.path = path, .fd = look(s, s->rootfs, path, O_RDONLY | O_DIRECTORY)};
    struct rows names = {.at = NULL};
    struct nvc_elf elf;

    if (folder.fd < 0) {
        char cause[128] = "";
        if (errno == ENOENT)
            return;
        strncpy(cause, strerror(errno), sizeof(cause) - 1);
        if (cause[0] >= 'A' && cause[0] <= 'Z')
            cause[0] = (char)(cause[0] + 'a' - 'A');
        steps_warn(s, "%s: %s; the loader cache gets none of its libraries", path, cause);
        return;
    }
    folder.whole = mount_of(s, folder.fd) != s->root_mount;
    if (folder.whole)
        names_in(s, folder.fd, &names, LISTED_MAX);
    else
        mounted_in(s, folder.fd, &names);
    if (names.count)
        qsort(names.at, names.count, sizeof(*names.at), by_length);
    for (size_t i = 0; i < names.count && i < NAMES_MAX && !s->failed; i++)
        if (examine(s, &folder, names.at[i].a, &elf))
            take_library(found, &folder, names.at[i].a, &elf);
    close(folder.fd);
    rows_free(&names);
}

static void forget_entries(struct nvc_steps *s, const char *path)
{
    size_t kept = 0;

    for (size_t i = 0; i < s->entries.count; i++) {
        struct row row = s->entries.at[i];
        if (strcmp(row.b, path) == 0)
            row_free(&row);
        else
            s->entries.at[kept++] = row;
    }
    s->entries.count = kept;
}

/* What was mounted into the folders, and the SONAME links that lead to it; a missing folder has none. */
void find_libraries(struct nvc_steps *s, char version[NVC_STEPS_PATH])
{
    struct found found = {.s = s};

    for (size_t i = 0, looked = 0; i < s->folders.count && looked < FOLDERS_MAX && !s->failed; i++) {
        const struct rows before = {.at = s->folders.at, .count = i};
        if (!rows_have(&before, s->folders.at[i].a)) {
            look_into(&found, s->folders.at[i].a);
            looked++;
        }
    }
    if (found.left_out)
        steps_warn(s, "%zu libraries were mounted; the loader cache gets %d", ENTRIES_MAX + found.left_out,
                   ENTRIES_MAX);
    for (size_t i = 0; i < found.planned.count; i++) {
        const struct row *planned = &found.planned.at[i];
        if (rows_have(&s->hidden, planned->a))
            forget_entries(s, planned->b);
        else
            place_link(s, planned->a, planned->b);
    }
    rows_free(&found.planned);
    strcpy(version, found.version);
}
