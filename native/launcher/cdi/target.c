/* The container's root, and the places of the host that nvc keeps for it. The rules are those of nvc/apply/target.py,
 * nvc/kernel/privileges.py, nvc/base/rundir.py and nvc/apply/journal.py. */
#include "cdi.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINE_MAX_BYTES 4096
/* PIDFD_GET_MNT_NAMESPACE, PIDFD_GET_USER_NAMESPACE: linux/pidfd.h has them since 6.11. */
#define PIDFD_MNT _IO(0xFF, 3)
#define PIDFD_USER _IO(0xFF, 9)

bool cdi_drop(uint64_t kept)
{
    uint64_t effective, permitted;

    if (nvc_capget(&effective, &permitted) < 0)
        return false;
    if (!permitted)
        return true;
    if ((permitted & CDI_BIT(CAP_SETPCAP)) && nvc_capbset_keep(kept) < 0)
        return false;
    return nvc_capset(kept) == 0;
}

int cdi_number_in_proc(int pidfd)
{
    char path[64], line[256];
    int number = 0;

    snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", pidfd);
    FILE *info = fopen(path, "re");
    while (info && fgets(line, sizeof(line), info))
        if (sscanf(line, "Pid: %d", &number) == 1)
            break;
    if (info)
        fclose(info);
    return number;
}

/* From the pidfd since Linux 6.11: no process can hold that up, see nvc/kernel/processes.py. */
int cdi_namespace(int pidfd, int number, const char *kind)
{
    char path[64];
    int fd = ioctl(pidfd, strcmp(kind, "mnt") == 0 ? PIDFD_MNT : PIDFD_USER, 0);

    if (fd >= 0 || (errno != ENOTTY && errno != EINVAL))
        return fd;
    snprintf(path, sizeof(path), "/proc/%d/ns/%s", number, kind);
    return open(path, O_RDONLY | O_CLOEXEC);
}

int cdi_shares(int pidfd, int number, const char *kind)
{
    char path[64];
    struct stat own, theirs;
    int fd = cdi_namespace(pidfd, number, kind), found = -1;

    snprintf(path, sizeof(path), "/proc/self/ns/%s", kind);
    if (fd >= 0 && fstat(fd, &theirs) == 0)
        found = stat(path, &own) < 0 ? -2 : own.st_ino == theirs.st_ino;
    shut(fd);
    return found;
}

/* Whether the container's process is seen to be in another mount namespace, as in a createRuntime hook. */
static bool is_outside(int pid)
{
    int pidfd = pid > 1 ? nvc_pidfd_open(pid) : -1;
    int number = pidfd < 0 ? 0 : cdi_number_in_proc(pidfd);
    int shares = number <= 0 ? -1 : cdi_shares(pidfd, number, "mnt");

    shut(pidfd);
    return shares == 0 || shares == -2;
}

bool cdi_same(int one, int other)
{
    struct stat first, second;

    return fstat(one, &first) == 0 && fstat(other, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

bool cdi_enter(struct cdi_container *container)
{
    if (!cdi_drop(CDI_KEPT) || is_outside(container->pid))
        return false;
    int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    container->rootfs =
        root < 0 ? -1 : nvc_open_below(root, container->rootfs_path, O_PATH | O_DIRECTORY, 0);
    bool entered = container->rootfs >= 0 && !cdi_same(root, container->rootfs) &&
                   nvc_is_mount_root(container->rootfs) == 1;
    shut(root);
    return entered;
}

/* This user's id one level up (user_namespaces(7)). */
static uid_t outer_uid(void)
{
    unsigned long inside, outside, count, uid = geteuid(), found = uid;
    FILE *map = fopen("/proc/self/uid_map", "re");

    while (map && fscanf(map, "%lu %lu %lu", &inside, &outside, &count) == 3)
        if (inside <= uid && uid < inside + count) {
            found = outside + uid - inside;
            break;
        }
    if (map)
        fclose(map);
    return (uid_t)found;
}

bool cdi_is_host_root(void)
{
    return geteuid() == 0 && outer_uid() == 0;
}

/* Nobody else is to enter a directory of ours that others have made open, as the kubelet makes a hostPath. */
static bool close_directory(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    bool closed = fd >= 0 && fchmod(fd, 0700) == 0;

    shut(fd);
    return closed;
}

/* Makes a private directory if need be. 0, -1 where there can be none, -2 where it is not safe or the host fails. */
static int make_private(const char *path)
{
    struct stat st;

    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return errno == EIO || errno == ENOMEM || errno == ENFILE || errno == EMFILE || errno == ENOSPC ? -2
                                                                                                        : -1;
    if (lstat(path, &st) < 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022))
        return -2;
    return !(st.st_mode & 077) || close_directory(path) ? 0 : -2;
}

/* The runtime directory, made if need be: 0, -1 where there can be none, -2 where it is not safe or the host fails. */
static int runtime_directory(char path[PATH_MAX])
{
    if (cdi_is_host_root())
        strcpy(path, "/run/nvc");
    else
        snprintf(path, PATH_MAX, "/run/user/%u/nvc", outer_uid());
    return make_private(path);
}

/* The journal's path. 0, -1, -2 as above. */
static int journal_path(int rootfs, char path[PATH_MAX])
{
    int64_t birth = nvc_birth_time(rootfs);
    struct stat st;
    int result = runtime_directory(path);

    if (result == 0) {
        strcat(path, "/containers");
        result = make_private(path);
    }
    if (result < 0)
        return result;
    if (fstat(rootfs, &st) < 0 || birth < 0)
        return -2;
    size_t length = strlen(path);
    snprintf(path + length, PATH_MAX - length, "/%llx-%llx-%llx", (unsigned long long)st.st_dev,
             (unsigned long long)st.st_ino, (unsigned long long)birth);
    return 0;
}

bool cdi_interrupted(int rootfs)
{
    char path[PATH_MAX];
    struct stat st;
    int result = journal_path(rootfs, path);

    if (result < 0)
        return result == -2;
    return stat(path, &st) < 0 ? errno != ENOENT : st.st_size > 0;
}

bool cdi_journal_open(int rootfs, struct cdi_journal *journal)
{
    struct stat st;
    int result = journal_path(rootfs, journal->path);

    journal->fd = -1;
    if (result < 0)
        return result == -1;
    int fd = open(journal->path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    /* A journal with records is one of a run that was killed; one without a name was removed meanwhile. */
    if (flock(fd, LOCK_EX | LOCK_NB) < 0 || fstat(fd, &st) < 0 || st.st_nlink == 0 || st.st_size > 0) {
        close(fd);
        return false;
    }
    journal->fd = fd;
    return true;
}

void cdi_journal_close(struct cdi_journal *journal, bool done)
{
    if (journal->fd < 0)
        return;
    if (done)
        unlink(journal->path);
    close(journal->fd);
    journal->fd = -1;
}

long long cdi_nanoseconds(const struct timespec *time)
{
    return (long long)time->tv_sec * 1000000000 + time->tv_nsec;
}

/* Whether Python has made this note of the configuration as it is now; see nvc/frontends/cdi/hooks/slices.py. */
static bool is_noted(const char *name, const char *configuration, const struct stat *st)
{
    char path[PATH_MAX], wanted[LINE_MAX_BYTES], noted[LINE_MAX_BYTES];
    struct stat note;

    if (runtime_directory(path) < 0)
        return false;
    size_t length = strlen(path);
    snprintf(path + length, PATH_MAX - length, "/%s", name);
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got =
        fstat(fd, &note) == 0 && S_ISREG(note.st_mode) && note.st_uid == geteuid() && !(note.st_mode & 077)
            ? read(fd, noted, sizeof(noted))
            : -1;
    close(fd);
    int size = snprintf(
        wanted, sizeof(wanted), "%s %s (%llu, %llu, %lld, %lld, %lld, %u, %u)\n", NVC_VERSION, configuration,
        (unsigned long long)st->st_dev, (unsigned long long)st->st_ino, (long long)st->st_size,
        cdi_nanoseconds(&st->st_mtim), cdi_nanoseconds(&st->st_ctim), st->st_uid, st->st_mode);
    return got == size && memcmp(noted, wanted, (size_t)size) == 0;
}

bool cdi_noted(const char *note)
{
    static const char *const paths[] = {"/etc/nvc/config.toml", "/etc/nvidia-container-runtime/config.toml"};
    struct stat st;

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        if (stat(paths[i], &st) == 0)
            return is_noted(note, paths[i], &st);
        if (errno != ENOENT && errno != ENOTDIR)
            return false;
    }
    return true;
}
