/* The container of a start that is done again. The rules are those of nvc/apply/target.py; what is not of the usual kind
 * (a user namespace, a call without a process, a path that leads elsewhere) is Python's. */
#include "cdi/cdi.h"
#include "files.h"
#include "replay.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DIRECTORY (O_PATH | O_DIRECTORY | O_CLOEXEC)

/* Whether the process's namespace is this process's: 1 or 0, -1 where it is not told. */
static int shares(int proc, const char *kind)
{
    char name[16], path[32], own[64] = "", theirs[64] = "";

    snprintf(name, sizeof(name), "ns/%s", kind);
    snprintf(path, sizeof(path), "/proc/self/ns/%s", kind);
    if (readlinkat(proc, name, theirs, sizeof(theirs) - 1) < 0 || readlink(path, own, sizeof(own) - 1) < 0)
        return -1;
    return strcmp(own, theirs) == 0;
}

/* The root of a process that has not pivoted is the host's; the path is then seen from its own namespace. */
static int open_rootfs(int proc, const char *path)
{
    int host = open("/", DIRECTORY), root = openat(proc, "root", DIRECTORY), found = -1;
    bool right = false;

    if (host >= 0 && root >= 0 && cdi_same(root, host)) {
        found = cdi_open_below(root, path, O_PATH | O_DIRECTORY);
        right = found >= 0 && !cdi_same(found, root) && nvc_is_mount_root(found) == 1;
    } else if (host >= 0 && root >= 0) {
        found = open(path, DIRECTORY);
        right = found >= 0 && cdi_same(found, root);
        if (found >= 0)
            close(found);
        found = root;
        root = -1;
    }
    if (host >= 0)
        close(host);
    if (root >= 0)
        close(root);
    if (!right && found >= 0) {
        close(found);
        found = -1;
    }
    return found;
}

bool replay_open(int pid, const char *rootfs, struct replay_container *container)
{
    char path[32];

    if (pid <= 1 || rootfs[0] != '/' || !rootfs[strspn(rootfs, "/")])
        return false;
    container->pidfd = nvc_pidfd_open(pid);
    int number = container->pidfd < 0 ? 0 : cdi_number_in_proc(container->pidfd);
    if (number <= 0)
        return false;
    snprintf(path, sizeof(path), "/proc/%d", number);
    container->proc = open(path, DIRECTORY);
    if (container->proc < 0 || shares(container->proc, "mnt") != 0 || shares(container->proc, "user") != 1)
        return false;
    container->mount_namespace = openat(container->proc, "ns/mnt", O_RDONLY | O_CLOEXEC);
    container->rootfs = open_rootfs(container->proc, rootfs);
    /* All was opened below /proc/PID: if the process still lives now, it was that process's. */
    return container->mount_namespace >= 0 && container->rootfs >= 0 &&
           nvc_pidfd_send_signal(container->pidfd, 0) == 0;
}
