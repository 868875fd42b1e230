/* Opening things without following a path twice, and holding processes by descriptor. */
#include "files.h"
#include "_files.h"

#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>

#define STEP 16384 /* bytes for which there is room when a file is read */
#ifndef RESOLVE_CACHED
#define RESOLVE_CACHED 0x20 /* Linux 5.12 */
#endif

int nvc_open_below(int root, const char *path, uint64_t flags, uint64_t more)
{
    struct open_how how = {.flags = flags | O_CLOEXEC,
                           .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | more};
    int tries = 0, most = more & RESOLVE_CACHED ? 2 : 1000;
    long fd;

    path += strspn(path, "/");
    /* EAGAIN: a rename or mount raced with the walk (openat2(2), RESOLVE_IN_ROOT); bounded, since the container may race on
     * purpose. With RESOLVE_CACHED it says that something is not cached, which stays so. */
    do
        fd = syscall(SYS_openat2, root, *path ? path : ".", &how, sizeof(how));
    while (fd < 0 && (errno == EINTR || (errno == EAGAIN && ++tries < most)));
    return fd < 0 ? -errno : (int)fd;
}

int nvc_pidfd_open(int pid)
{
    long fd = syscall(SYS_pidfd_open, pid, 0);
    return fd < 0 ? -errno : (int)fd;
}

int nvc_pidfd_send_signal(int pidfd, int sig)
{
    return syscall(SYS_pidfd_send_signal, pidfd, sig, NULL, 0) < 0 ? -errno : 0;
}

int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int nvc_is_mount_root(int fd)
{
    struct nvc_identity identity;
    int result = nvc_identity(fd, &identity);

    return result < 0 ? result : identity.is_mount_root;
}

int new_mount(const char *type, const char *const *options)
{
    int fs = (int)syscall(SYS_fsopen, type, FSOPEN_CLOEXEC), mount = -1;
    bool made = fs >= 0;

    for (; made && options[0]; options += 2)
        made = syscall(SYS_fsconfig, fs, options[1] ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG, options[0],
                       options[1], 0) == 0;
    if (made && syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
        mount = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, 0);
    shut(fs);
    return mount;
}

/* A mount of our own shows the root of our cgroup namespace, which need not be mounted anywhere. */
int nvc_cgroup_root(int version)
{
    const char *const options[] = {version == 1 ? "devices" : NULL, NULL, NULL};
    int root = new_mount(version == 1 ? "cgroup" : "cgroup2", options);

    return root < 0 ? -errno : root;
}

int nvc_identity(int fd, struct nvc_identity *out)
{
    struct statx sx;

    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_BASIC_STATS | STATX_MNT_ID, &sx) < 0)
        return -errno;
    *out = (struct nvc_identity){makedev(sx.stx_dev_major, sx.stx_dev_minor),
                                 sx.stx_ino,
                                 sx.stx_mnt_id,
                                 sx.stx_mode,
                                 makedev(sx.stx_rdev_major, sx.stx_rdev_minor),
                                 (sx.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0};
    return 0;
}

int64_t nvc_birth_time(int fd)
{
    struct statx sx;

    if (statx(fd, "", AT_EMPTY_PATH, STATX_BTIME, &sx) < 0 || !(sx.stx_mask & STATX_BTIME))
        return 0;
    return sx.stx_btime.tv_sec * 1000000000 + sx.stx_btime.tv_nsec;
}

static bool make_room(struct buffer *buffer, size_t more)
{
    if (buffer->room - buffer->size >= more)
        return true;
    size_t room = 2 * buffer->room + more;
    char *larger = realloc(buffer->bytes, room);
    if (larger) {
        buffer->bytes = larger;
        buffer->room = room;
    }
    return larger != NULL;
}

bool buffer_add(struct buffer *buffer, const void *bytes, size_t size)
{
    if (!make_room(buffer, size + 1)) /* there is a place for nothing, too */
        return false;
    memcpy(buffer->bytes + buffer->size, bytes, size);
    buffer->size += size;
    return true;
}

bool buffer_read(struct buffer *buffer, int fd, size_t most)
{
    while (buffer->size <= most && make_room(buffer, STEP)) {
        size_t room = buffer->room - buffer->size, left = most + 1 - buffer->size;
        ssize_t got = read(fd, buffer->bytes + buffer->size, room < left ? room : left);
        if (got == 0 || (got < 0 && errno != EINTR))
            return got == 0;
        buffer->size += got > 0 ? (size_t)got : 0;
    }
    errno = buffer->size > most ? EFBIG : ENOMEM;
    return false;
}

bool write_all(int fd, const void *bytes, size_t size)
{
    for (const char *at = bytes; size > 0;) {
        ssize_t written = write(fd, at, size);
        if (written == 0 || (written < 0 && errno != EINTR))
            return false;
        at += written > 0 ? written : 0;
        size -= written > 0 ? (size_t)written : 0;
    }
    return true;
}

bool is_plain(const char *text)
{
    for (; *text; text++)
        if (*text < ' ' || *text > '~')
            return false;
    return true;
}
