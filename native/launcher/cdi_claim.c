/* A container that has slices of claims alone, and nothing that is seldom: what the Python of nvc/cdi/hooks/slices.py
 * and nvc/slices/build/builder.py would do for it. What was found when the claim was prepared is in the slice's recipe.
 * Looked at again is what the recipe cannot know: the container, its image, and whether files are still the same. */
#include "cdi.h"
#include "files.h"
#include "launcher.h"
#include "replay.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define FILES (MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)
#define DATA (FILES | MOUNT_ATTR_NOEXEC)
#define COMPAT "usr/local/cuda/compat"
enum { SHIMS = 2, COMPAT_MAX = 65536, SEARCH_MAX = 256, VERSION_MAX = 256 };

static const char *const SONAMES[SHIMS] = {"libcuda.so.1", "libnvidia-ml.so.1"};
static const char *const NAMES[SHIMS] = {"libcuda.so", "libnvidia-ml.so"};

/* The installed shim. */
struct shims {
    int fd[SHIMS];
    struct nvc_steps_file files[SHIMS];
};

static bool is_among(const char *word, char *const *words, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(words[i], word))
            return true;
    return false;
}

/* Whether the recipe is for this very container: for its slices, by documents of the same driver. */
static bool is_for(const struct recipe *recipe, const struct cdi_call *call, const struct cdi_given *given)
{
    const struct cdi_step *step = call->steps; /* of the slices */
    size_t options = 0;
    char word[2 * PATH_MAX];

    for (size_t i = 0; i < step->count; i++) {
        const struct nvc_steps_option *option = &step->options[i];
        if (!strcmp(option->name, "slice")) {
            if (!is_among(option->value, given->slices, given->slice_count))
                return false;
            continue;
        }
        if (snprintf(word, sizeof(word), "--%s=%s", option->name, option->value) >= (int)sizeof(word) ||
            options == recipe->options.count || strcmp(word, recipe->options.at[options++]) != 0)
            return false;
    }
    for (size_t i = 0; i < given->slice_count; i++)
        if (!is_among(given->slices[i], (char *const *)recipe->slices.at, recipe->slices.count))
            return false;
    return options == recipe->options.count && given->slice_count == recipe->slices.count;
}

/* Whether modules, GPUs and MIG devices are those that the recipe was written for. */
static bool is_same_host(const struct recipe *recipe)
{
    struct replay_record host = {.roots = {-1, -1, -1, -1}};
    int root = open(recipe->system, O_PATH | O_DIRECTORY | O_CLOEXEC);
    bool same = root >= 0;

    host.roots[REPLAY_SYSTEM] = root;
    for (size_t i = 0; i < recipe->look_count && same; i++)
        same = replay_look(&host, recipe->looks[i].place, recipe->looks[i].answer, NULL) == REPLAY_SAME;
    if (root >= 0)
        close(root);
    return same;
}

/* Whether something listens where nvcd does. It is asked by one connect, which never waits. */
static bool nvcd_runs(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char path[PATH_MAX];

    if (cdi_directory(path) < 0 || strlen(path) + sizeof("/nvcd/nvcd.sock") > sizeof(address.sun_path))
        return false;
    strcpy(address.sun_path, path);
    strcat(address.sun_path, "/nvcd/nvcd.sock");
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool runs =
        fd >= 0 && (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 || errno == EAGAIN);
    if (fd >= 0)
        close(fd);
    return runs;
}

/* As nvc/slices/build/shim.py finds it. */
static bool find_shims(struct shims *shims)
{
    char prefix[PATH_MAX], version[VERSION_MAX] = "current", path[2 * PATH_MAX];
    struct stat st;

    find_prefix("nvc-cdi-hook", prefix);
    snprintf(path, sizeof(path), "%s/lib/nvc/vgpu/current", prefix);
    ssize_t length = readlink(path, version, sizeof(version) - 1);
    if (length >= (ssize_t)sizeof(version) - 1 || (length < 0 && errno != EINVAL))
        return false;
    if (length >= 0)
        version[length] = '\0';
    for (int i = 0; i < SHIMS; i++) {
        snprintf(path, sizeof(path), "%s/lib/nvc/vgpu/%s/%s", prefix, version, NAMES[i]);
        shims->fd[i] = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (shims->fd[i] < 0 || fstat(shims->fd[i], &st) < 0 || !S_ISREG(st.st_mode) || (st.st_mode & 022) ||
            (st.st_uid != 0 && st.st_uid != geteuid()))
            return false;
        shims->files[i] = (struct nvc_steps_file){st.st_dev, st.st_ino};
    }
    return true;
}

static int shim_of(const struct shims *shims, const char *soname)
{
    for (int i = 0; i < SHIMS; i++)
        if (!strcmp(SONAMES[i], soname))
            return shims->fd[i];
    return -1;
}

/* Whether an earlier hook of this container has laid a shim over the image's forward-compatibility libcuda, or nobody can
 * tell. The image's own note, by which it was chosen, is not to be seen then. */
static bool has_shim_over_compat(int rootfs, const struct shims *shims)
{
    struct dirent *entry;
    struct stat st;
    bool found = false;
    int fd = nvc_openat2(rootfs, COMPAT, O_RDONLY | O_DIRECTORY, 0, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS);
    DIR *entries = fd < 0 ? NULL : fdopendir(fd);

    if (!entries)
        return fd != -ENOENT && fd != -ENOTDIR;
    for (int count = 0; !found && (errno = 0, entry = readdir(entries)) != NULL; count++) {
        if (count > COMPAT_MAX)
            found = true;
        if (found || strncmp(entry->d_name, "libcuda.so", 10) != 0)
            continue;
        found = fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0;
        for (int i = 0; i < SHIMS && !found; i++)
            found = shims->files[i].device == st.st_dev && shims->files[i].inode == st.st_ino;
    }
    found = found || errno != 0;
    closedir(entries);
    return found;
}

/* Whether the container uses none of the image's forward-compatibility libraries. */
static bool has_no_compat(int rootfs, const char *driver, const struct shims *shims)
{
    struct nvc_steps_option option = {"host-driver-version", driver};
    struct nvc_steps *steps = nvc_steps_new(rootfs, 0);
    size_t size = 1;

    if (steps && nvc_steps_add(steps, "enable-cuda-compat", &option, 1) == 0 && nvc_steps_finish(steps) == 0)
        nvc_steps_records(steps, &size);
    if (steps)
        nvc_steps_free(steps);
    return size == 0 && !has_shim_over_compat(rootfs, shims);
}

/* Records of what of the image must be covered, linked or hidden; NULL where that is not told. They stay. */
static const uint8_t *look_into_image(const struct cdi_container *container, const struct recipe *recipe,
                                      const struct shims *shims, size_t *size)
{
    const char *search[SEARCH_MAX + RECIPE_ITEMS];
    struct nvc_steps *steps = nvc_steps_new(container->rootfs, 1);
    char *path = strdup(container->given->searched ? container->given->searched : ""), *rest = path;
    size_t count = 0;

    for (char *item; path && (item = strsep(&rest, ":;")) != NULL;) {
        /* It depends on PATH, and on the container's program. */
        if (strstr(item, "ORIGIN") || (*item == '/' && count == SEARCH_MAX))
            return NULL;
        if (*item == '/')
            search[count++] = item;
    }
    for (size_t i = 0; i < recipe->search.count; i++)
        search[count++] = recipe->search.at[i];
    if (!steps || !path ||
        nvc_steps_shadows(steps, recipe->libraries, "", search, count, shims->files, SHIMS) < 0)
        return NULL;
    const uint8_t *records = nvc_steps_records(steps, size);
    return records ? records : (const uint8_t *)"";
}

/* Whether a file of the driver is in the container: 1 or 0; -1 where that cannot be told. What is left of an earlier
 * container's mounts is empty. */
static int is_there(int rootfs, const char *path)
{
    struct stat st;
    int fd = nvc_openat2(rootfs, path + 1, O_PATH, 0, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS);

    if (fd < 0)
        return fd == -ENOENT || fd == -ENOTDIR ? 0 : -1;
    int result = fstat(fd, &st) < 0 ? -1 : st.st_size > 0;
    close(fd);
    return result;
}

/* The driver's own library, if it is still the one that was found. */
static int open_library(const char *root, const struct recipe_library *library)
{
    int top = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int fd = top < 0
                 ? -1
                 : nvc_openat2(top, library->path + 1, O_PATH, 0, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS);
    struct stat st;

    if (top >= 0)
        close(top);
    bool same = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_dev == library->device &&
                st.st_ino == library->inode && (uint64_t)st.st_size == library->size &&
                (uint64_t)st.st_mtim.tv_sec * 1000000000 + (uint64_t)st.st_mtim.tv_nsec == library->mtime;
    return same ? fd : -1;
}

static bool below(char out[2 * PATH_MAX], const char *directory, const char *name)
{
    return snprintf(out, PATH_MAX, "%s/%s", directory, name) < PATH_MAX;
}

/* The shim in a library's place, and the library where only the shim looks. */
static bool add_library(struct cdi_program *p, const struct recipe *recipe, const struct shims *shims,
                        const struct recipe_library *library, int rootfs)
{
    char directory[2 * PATH_MAX], name[NAME_MAX], path[2 * PATH_MAX], private[2 * PATH_MAX];
    int there = is_there(rootfs, library->path), shim = shim_of(shims, library->soname);

    if (there <= 0)
        return there == 0;
    int real = open_library(recipe->root, library);
    snprintf(directory, sizeof(directory), "%.*s", (int)(strrchr(library->path, '/') - library->path),
             library->path);
    snprintf(name, sizeof(name), "nvc/real-%s", library->soname);
    if (real < 0 || shim < 0 || !below(path, recipe->libraries, name) ||
        !cdi_bind(p, shim, false, FILES | MOUNT_ATTR_RDONLY, library->path) ||
        !cdi_bind(p, real, false, FILES | MOUNT_ATTR_RDONLY, path))
        return false;
    return !strcmp(directory, recipe->libraries) ||
           (below(private, recipe->libraries, "nvc") && below(path, directory, "nvc") &&
            cdi_link(p, private, path));
}

/* Quota and ledger beside the shim. */
static bool add_slice(struct cdi_program *p, const struct cdi_slice *slice)
{
    const struct {
        const char *name;
        int fd;
        bool directory;
        uint64_t attributes;
    } sources[] = {{"nvc/quota", slice->quota, false, DATA | MOUNT_ATTR_RDONLY},
                   {"nvc/ledger", slice->ledger, true, DATA}};
    char path[2 * PATH_MAX];

    for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++)
        if (!below(path, slice->recipe.libraries, sources[i].name) ||
            !cdi_bind(p, sources[i].fd, sources[i].directory, sources[i].attributes, path))
            return false;
    return true;
}

/* One kind of records of the image, as nvc/plan/slices.py has them one after the other. */
static bool add_image(struct cdi_program *p, const struct recipe *recipe, const struct shims *shims,
                      const uint8_t *records, size_t size, char wanted)
{
    char private[2 * PATH_MAX], path[2 * PATH_MAX], *warning;

    for (size_t at = 0; at < size;) {
        char kind = (char)records[at++];
        const char *text = (const char *)records + at;
        at += strlen(text) + 1;
        const char *soname = (const char *)records + at;
        if (kind == NVC_STEPS_SHADOW)
            at += strlen(soname) + 1;
        if (kind != wanted)
            continue;
        if (kind == NVC_STEPS_SHADOW &&
            !cdi_bind(p, shim_of(shims, soname), false, FILES | MOUNT_ATTR_RDONLY, text))
            return false;
        if (kind == NVC_STEPS_PLACE && strcmp(text, recipe->libraries) != 0 &&
            !(below(private, recipe->libraries, "nvc") && below(path, text, "nvc") &&
              cdi_link(p, private, path)))
            return false;
        if (kind == NVC_STEPS_HIDDEN &&
            (asprintf(
                 &warning,
                 "%s is hidden: its forward-compatibility libraries are not those that the container uses",
                 text) < 0 ||
             !cdi_cover(p, text) || !cdi_warning(p, warning)))
            return false;
    }
    return true;
}

/* Covers libraries whose memory is not counted, and hides them from the other steps. */
static bool add_covers(struct cdi_program *p, const struct cdi_slice *slice, int rootfs,
                       struct nvc_steps *others)
{
    for (size_t i = 0; i < slice->recipe.cover_count; i++) {
        int there = is_there(rootfs, slice->recipe.covers[i]);
        if (there < 0 ||
            (there && !cdi_bind(p, slice->empty, false, FILES | MOUNT_ATTR_RDONLY, slice->recipe.covers[i])))
            return false;
        if (there)
            nvc_steps_hide(others, strrchr(slice->recipe.covers[i], '/') + 1);
    }
    return true;
}

/* The steps behind the slice's in the same call. What they warn of comes before what the slice does. */
static bool add_others(struct cdi_program *p, const struct cdi_call *call, struct nvc_steps *others)
{
    const char **own = p->warnings;
    size_t count = p->warning_count, size;

    p->warnings = NULL;
    p->warning_count = 0;
    for (size_t i = 1; i < call->count; i++)
        if (nvc_steps_add(others, call->steps[i].name, call->steps[i].options, call->steps[i].count) < 0)
            return false;
    if (nvc_steps_finish(others) < 0)
        return false;
    const uint8_t *records = nvc_steps_records(others, &size);
    bool added = cdi_program(records, size, p);
    for (size_t i = 0; i < count && added; i++)
        added = cdi_warning(p, own[i]);
    return added;
}

/* Whether a call makes slices first, and once. */
static bool begins_with_slices(const struct cdi_call *call)
{
    for (size_t i = 0; i < call->count; i++)
        if ((i == 0) != !strcmp(call->steps[i].name, "slice-memory"))
            return false;
    return true;
}

bool cdi_claim(const struct cdi_call *call, struct cdi_container *container, struct cdi_program *program)
{
    static struct cdi_slice slice;
    const struct recipe *recipe = &slice.recipe;
    struct shims shims;
    size_t size = 0;

    *program = (struct cdi_program){.size = 0};
    if (!begins_with_slices(call) || !container->given || !container->named || !cdi_noted(CDI_NOTE_CLAIMS) ||
        !cdi_slice_find(container, &slice) || !is_for(recipe, call, container->given) ||
        !is_same_host(recipe) || !cdi_has_only_slices(recipe, container) || !find_shims(&shims))
        return false;
    if (!cdi_enter(container) || cdi_interrupted(container->rootfs) || cdi_has_policies(recipe) ||
        (recipe->nvcd && !nvcd_runs()) || !has_no_compat(container->rootfs, recipe->driver, &shims))
        return false;
    const uint8_t *records = look_into_image(container, recipe, &shims, &size);
    struct nvc_steps *others = nvc_steps_new(container->rootfs, 1);
    if (!records || !others || !cdi_slice_join(container, &slice))
        return false;
    for (size_t i = 0; i < recipe->shimmed_count; i++)
        if (!add_library(program, recipe, &shims, &recipe->shimmed[i], container->rootfs))
            return false;
    return add_slice(program, &slice) &&
           add_image(program, recipe, &shims, records, size, NVC_STEPS_SHADOW) &&
           add_image(program, recipe, &shims, records, size, NVC_STEPS_PLACE) &&
           add_image(program, recipe, &shims, records, size, NVC_STEPS_HIDDEN) &&
           add_covers(program, &slice, container->rootfs, others) && add_others(program, call, others);
}
