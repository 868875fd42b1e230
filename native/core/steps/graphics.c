/* Steps that look at the container's /dev, and at the driver's /proc: links to device nodes, the application profile that
 * names the visible GPUs, and `params`, which keeps the driver's libraries from making nodes. */
#include "_steps.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define DEV "/dev"
#define MINORS_MAX 64 /* bits that a profile has */
#define PROFILES "/etc/nvidia/nvidia-application-profiles-rc.d"
#define PROC "/proc/driver/nvidia"
#define PARAMS_MAX 65536
#define PROC_ENTRIES_MAX 256
#define MODIFY "ModifyDeviceFiles: 1"

/* Whether /dev was made for this container; the host's must not change. */
bool has_own_dev(struct nvc_steps *s)
{
    struct stat inside, host;
    int fd = look(s, s->rootfs, DEV, O_PATH | O_DIRECTORY);

    if (fd < 0)
        return false;
    bool known = fstat(fd, &inside) == 0 && stat(DEV, &host) == 0;
    close(fd);
    if (!known)
        steps_fail(s, errno, "create-device-links", DEV);
    return known && inside.st_dev != host.st_dev;
}

/* Takes in a link if what it leads to is there. */
void device_link(struct nvc_steps *s, const char *text, const char *target)
{
    char directory[NVC_STEPS_PATH], whole[NVC_STEPS_PATH], path[NVC_STEPS_PATH];
    struct stat st;

    snprintf(directory, sizeof(directory), "%.*s", (int)(strrchr(target, '/') - target), target);
    if (!steps_join(s, whole, directory, text) || !search_clean(whole, path) || !path[1])
        return;
    char *slash = strrchr(path, '/');
    *slash = '\0';
    int fd = look(s, s->rootfs, path, O_PATH | O_DIRECTORY);
    if (fd < 0) {
        if (errno != ENOENT && errno != ENOTDIR)
            steps_fail(s, errno, "create-device-links", path);
        return;
    }
    bool there = fstatat(fd, slash + 1, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (!there && errno != ENOENT && errno != ENAMETOOLONG)
        steps_fail(s, errno, "create-device-links", path);
    close(fd);
    if (there)
        place_link(s, text, target);
}

/* The profile by which EGL, GLX and Vulkan see the GPUs whose nodes the container has: one bit each. */
void make_profile(struct nvc_steps *s)
{
    char name[16], content[256];
    uint64_t visible = 0;
    struct stat st;
    int fd = s->profile_made ? -1 : look(s, s->rootfs, DEV, O_PATH | O_DIRECTORY);

    if (s->profile_made)
        return;
    s->profile_made = true;
    if (fd < 0) {
        steps_fail(s, errno, "update-application-profile", DEV);
        return;
    }
    for (unsigned minor = 0; minor < MINORS_MAX; minor++) {
        for (int width = 1; width <= (minor < 10 ? 2 : 1); width++) {
            snprintf(name, sizeof(name), width == 1 ? "nvidia%u" : "nvidia%02u", minor);
            if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
                visible |= (uint64_t)(S_ISCHR(st.st_mode) && minor(st.st_rdev) == minor) << minor;
            else if (errno != ENOENT)
                steps_fail(s, errno, "update-application-profile", DEV);
        }
    }
    close(fd);
    if (!visible)
        return;
    snprintf(content, sizeof(content),
             "{\"profiles\":[{\"name\":\"_container_\",\"settings\":[\"EGLVisibleDGPUDevices\",%llu]}],"
             "\"rules\":[{\"pattern\":[],\"profile\":\"_container_\"}]}\n",
             (unsigned long long)visible);
    steps_record(s, NVC_STEPS_TMPFS, PROFILES, "10-container.conf", content);
}

/* Everything else in the directory, bound as it is. */
static void bind_others(struct nvc_steps *s, int root)
{
    struct rows names = {.at = NULL};
    struct stat st;
    char path[NVC_STEPS_PATH];
    int fd = look(s, root, PROC, O_RDONLY | O_DIRECTORY);

    if (fd < 0) {
        steps_fail(s, errno, "list", PROC);
        return;
    }
    names_in(s, fd, &names, PROC_ENTRIES_MAX + 1);
    if (names.count > PROC_ENTRIES_MAX)
        steps_fail(s, E2BIG, "list", PROC);
    rows_sort(&names);
    for (size_t i = 0; i < names.count && !s->failed; i++) {
        if (fstatat(fd, names.at[i].a, &st, AT_SYMLINK_NOFOLLOW) < 0 || !is_plain(names.at[i].a))
            steps_fail(s, errno, "read", PROC);
        else if (strcmp(names.at[i].a, "params") != 0 && (S_ISDIR(st.st_mode) || S_ISREG(st.st_mode)) &&
                 steps_join(s, path, PROC, names.at[i].a))
            steps_record(s, NVC_STEPS_BIND, path, S_ISDIR(st.st_mode) ? "d" : "f", NULL);
    }
    close(fd);
    rows_free(&names);
}

/* `params` says that nodes are not the driver's to make; all else is as it was. Nothing where no driver is loaded, or
 * where it says so already. */
void make_params(struct nvc_steps *s)
{
    struct buffer params = {.bytes = NULL};
    bool changed = false;

    if (s->params_made)
        return;
    s->params_made = true;
    int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int fd = root < 0 ? -1 : look(s, root, PROC "/params", O_RDONLY | O_NONBLOCK | O_NOCTTY);
    /* What is there and cannot be read may let nodes be made. */
    bool missing = root >= 0 && fd < 0 && (errno == ENOENT || errno == ENOTDIR);
    if (!missing && (fd < 0 || !read_some(s, fd, &params, PARAMS_MAX)))
        steps_fail(s, errno, "read", PROC "/params");
    shut(fd);
    steps_add(s, &params, "", 1);
    if (!s->failed && strlen(params.bytes) + 1 != params.size)
        steps_fail(s, EINVAL, "read", PROC "/params");
    for (char *at = params.bytes; !s->failed && (at = strstr(at, MODIFY)) != NULL; changed = true)
        at[sizeof(MODIFY) - 2] = '0';
    if (changed) {
        steps_record(s, NVC_STEPS_TMPFS, PROC, "params", params.bytes);
        bind_others(s, root);
    }
    free(params.bytes);
    shut(root);
}
