/* The device nodes that a container gets: as devices of its configuration, and by mounts. The rules are stricter than
 * those of nvc/cdi/hooks/nodes.py: a device that is not known is for Python to judge. */
#include "cdi.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define DRM_MAJOR 226 /* of the nodes in /dev/dri, which no slice is found by */

static bool may_have(const struct recipe *recipe, uint32_t major, uint32_t minor)
{
    bool found = major == DRM_MAJOR;

    for (size_t i = 0; i < recipe->node_count; i++)
        found = found || (recipe->nodes[i].major == major && recipe->nodes[i].minor == minor);
    return found;
}

/* Whether nothing at a mounted path can be the node of a GPU that has no limit. */
static bool is_harmless(const struct recipe *recipe, int directory, const char *path)
{
    struct stat st;

    if (fstatat(directory, path, &st, 0) < 0)
        return errno == ENOENT || errno == ENOTDIR;
    return !S_ISCHR(st.st_mode) || may_have(recipe, major(st.st_rdev), minor(st.st_rdev));
}

/* The same for what lies in a directory that is mounted, under the names that the driver's nodes have. */
static bool has_no_node(const struct recipe *recipe, const char *source, const char *below)
{
    char path[2 * PATH_MAX + 32];
    struct dirent *entry = NULL;
    bool harmless = true;

    snprintf(path, sizeof(path), "%s/%s", source, below);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC);
    DIR *entries = fd < 0 ? NULL : fdopendir(fd);
    if (!entries)
        return errno == ENOENT || errno == ENOTDIR;
    while (harmless && (errno = 0, entry = readdir(entries)) != NULL)
        if (!strncmp(entry->d_name, "nvidia", 6))
            harmless = is_harmless(recipe, fd, entry->d_name);
    harmless = harmless && (entry || errno == 0);
    closedir(entries);
    return harmless;
}

static bool is_safe_source(const struct recipe *recipe, const char *bundle, const char *source)
{
    static const char *const below[] = {"", "dev", "nvidia-caps", "dev/nvidia-caps"};
    char path[2 * PATH_MAX];
    struct stat st;

    if (snprintf(path, sizeof(path), "%s%s%s", *source == '/' ? "" : bundle, *source == '/' ? "" : "/",
                 source) >= PATH_MAX)
        return false;
    if (stat(path, &st) < 0)
        return errno == ENOENT || errno == ENOTDIR;
    if (!S_ISDIR(st.st_mode))
        return is_harmless(recipe, AT_FDCWD, path);
    for (size_t i = 0; i < sizeof(below) / sizeof(below[0]); i++)
        if (!has_no_node(recipe, path, below[i]))
            return false;
    return true;
}

bool cdi_has_only_slices(const struct recipe *recipe, const struct cdi_container *container)
{
    const struct cdi_given *given = container->given;

    for (size_t i = 0; i < given->node_count; i++)
        if (!may_have(recipe, given->nodes[i].major, given->nodes[i].minor))
            return false;
    for (size_t i = 0; i < given->source_count; i++)
        if (!is_safe_source(recipe, container->bundle, given->sources[i]))
            return false;
    return true;
}
