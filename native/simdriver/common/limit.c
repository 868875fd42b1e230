#include "limit.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

/* struct pidfd_info of linux/pidfd.h, as it was first. */
struct info {
    uint64_t mask, cgroup;
    uint32_t rest[12];
};
#define INFO_CGROUP (UINT64_C(1) << 2)
#define GET_INFO _IOWR(0xff, 11, struct info)

bool sim_has_limits(const struct sim_description *description)
{
    return strtol(description->driver_version, NULL, 10) >= SIM_LIMITS_SINCE;
}

uint64_t sim_own_cgroup(void)
{
    struct info info = {.mask = INFO_CGROUP};
    int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (fd < 0)
        return 0;
    int result = ioctl(fd, GET_INFO, &info);
    close(fd);
    return result == 0 && info.mask & INFO_CGROUP ? info.cgroup : 0;
}

/* What /proc/self/cgroup says of version 2. */
static bool own_path(char *path, size_t size)
{
    char text[8192];
    int fd = open("/proc/self/cgroup", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t length = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (length <= 0)
        return false;
    text[length] = '\0';
    for (char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, "0::", 3) != 0)
            continue;
        size_t end = strcspn(line, "\n");
        if (end - 3 >= size)
            return false;
        memcpy(path, line + 3, end - 3);
        path[end - 3] = '\0';
        return true;
    }
    return false;
}

static uint64_t own_space(void)
{
    struct stat st;
    int fd = open("/proc/self/ns/cgroup", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    uint64_t inode = syscall(SYS_fstat, fd, &st) == 0 ? st.st_ino : 0;
    close(fd);
    return inode;
}

static bool is_below(const char *path, const char *above)
{
    size_t length = strlen(above);
    return strncmp(path, above, length) == 0 && path[length] == '/';
}

const struct sim_limit *sim_own_limit(const struct sim_state *state, uint32_t partition, bool leaf)
{
    const struct sim_limit *nearest = NULL;
    uint32_t used = atomic_load(&state->limits_used);
    uint64_t own = used ? sim_own_cgroup() : 0, space = used ? own_space() : 0;
    char path[4096] = "";
    if (used && !own_path(path, sizeof(path)))
        space = 0;
    for (uint32_t i = 0; i < used && i < SIM_LIMITS; i++) {
        const struct sim_limit *limit = &state->limits[i];
        const char *inside = limit->path + (limit->inside < SIM_LIMIT_PATH ? limit->inside : 0);
        if (atomic_load(&limit->partition) != partition + 1 || atomic_load(&limit->hard) == SIM_NO_LIMIT)
            continue;
        if (own && atomic_load(&limit->cgroup) == own)
            return limit;
        if (!space || limit->space != space)
            continue;
        bool found = (!leaf && is_below(path, inside)) || (!own && strcmp(path, inside) == 0);
        if (found && (!nearest || strlen(limit->path) > strlen(nearest->path)))
            nearest = limit;
    }
    return nearest;
}

uint64_t sim_cgroup_bytes(const struct sim_state *state, int fd, uint32_t self, uint64_t cgroup,
                          uint32_t partition)
{
    uint64_t bytes = 0;
    uint32_t used = atomic_load(&state->slots_used);
    for (uint32_t slot = 0; slot < used && slot < SIM_SLOTS; slot++)
        if (atomic_load(&state->slots[slot].cgroup) == cgroup &&
            (slot == self || sim_slot_lives(state, fd, slot)))
            bytes += sim_slot_bytes(state, slot, partition);
    return bytes;
}

/* Inode and device of the directory of a cgroup of version 2. */
static bool look(const char *path, struct stat *st)
{
    struct statfs fs;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return false;
    bool found =
        fstatfs(fd, &fs) == 0 && fs.f_type == CGROUP2_SUPER_MAGIC && syscall(SYS_fstat, fd, st) == 0;
    close(fd);
    return found;
}

/* Length of the path of the hierarchy's root, on which `path` is mounted: what is above it is of another device. */
static size_t root_length(const char *path, dev_t device)
{
    char above[SIM_LIMIT_PATH];
    struct stat st;
    size_t length = strlen(path);
    strcpy(above, path);
    for (;;) {
        char *slash = strrchr(above, '/');
        if (!slash || slash == above)
            return length;
        *slash = '\0';
        if (!look(above, &st) || st.st_dev != device)
            return length;
        length = strlen(above);
    }
}

static struct sim_limit *find(const struct sim_state *state, uint32_t partition, uint64_t cgroup)
{
    for (uint32_t i = 0; i < SIM_LIMITS; i++)
        if (atomic_load(&state->limits[i].partition) == partition + 1 &&
            atomic_load(&state->limits[i].cgroup) == cgroup)
            return (struct sim_limit *)(uintptr_t)&state->limits[i];
    return NULL;
}

/* The entry of a cgroup, made without limits if it is missing. NULL: no room. */
static struct sim_limit *entry_of(struct sim_state *state, uint32_t partition, uint64_t cgroup,
                                  const char *path, size_t inside)
{
    struct sim_limit *limit = find(state, partition, cgroup);
    for (uint32_t i = 0; i < SIM_LIMITS && !limit; i++) {
        if (atomic_load(&state->limits[i].partition))
            continue;
        limit = &state->limits[i];
        limit->inside = (uint32_t)inside;
        limit->space = own_space();
        strcpy(limit->path, path);
        atomic_store(&limit->cgroup, cgroup);
        atomic_store(&limit->soft, 0);
        atomic_store(&limit->hard, SIM_NO_LIMIT);
        atomic_store(&limit->partition, partition + 1);
        if (atomic_load(&state->limits_used) <= i)
            atomic_store(&state->limits_used, i + 1);
    }
    return limit;
}

static void drop_empty(struct sim_limit *limit)
{
    if (!atomic_load(&limit->soft) && atomic_load(&limit->hard) == SIM_NO_LIMIT)
        atomic_store(&limit->partition, 0);
}

/* A cgroup that is removed takes its limits with it. What it has reserved above stays there: the driver is not told. */
static void reap(struct sim_state *state)
{
    for (uint32_t i = 0; i < SIM_LIMITS; i++) {
        struct sim_limit *limit = &state->limits[i];
        struct stat st;
        if (atomic_load(&limit->partition) &&
            (!look(limit->path, &st) || st.st_ino != atomic_load(&limit->cgroup)))
            atomic_store(&limit->partition, 0);
    }
}

int sim_limit_set(struct sim_state *state, uint32_t partition, const char *path, uint64_t soft,
                  uint64_t hard)
{
    char above[SIM_LIMIT_PATH];
    struct stat st;
    if (path[0] != '/' || strlen(path) >= sizeof(above) || !look(path, &st))
        return ENOENT;
    size_t root = root_length(path, st.st_dev);
    if (!path[root])
        return ENOENT;
    reap(state);
    struct sim_limit *limit = entry_of(state, partition, st.st_ino, path, root);
    if (!limit)
        return ENOSPC;
    uint64_t more = soft - atomic_load(&limit->soft); /* may wrap: it is added */
    atomic_store(&limit->soft, soft);
    atomic_store(&limit->hard, hard);
    drop_empty(limit);
    strcpy(above, path);
    for (char *slash = strrchr(above, '/'); more && (size_t)(slash - above) > root;
         slash = strrchr(above, '/')) {
        *slash = '\0';
        limit = look(above, &st) ? entry_of(state, partition, st.st_ino, above, root) : NULL;
        if (!limit)
            return ENOSPC;
        atomic_fetch_add(&limit->soft, more);
        drop_empty(limit);
    }
    return 0;
}

const struct sim_limit *sim_limit_get(const struct sim_state *state, uint32_t partition, const char *path,
                                      uint64_t *cgroup)
{
    struct stat st;
    *cgroup = look(path, &st) ? st.st_ino : 0;
    return *cgroup ? find(state, partition, *cgroup) : NULL;
}
