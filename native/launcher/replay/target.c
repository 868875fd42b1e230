/* The container of a start that is done again. The rules are those of nvc/apply/target.py; what is not of the usual kind
 * (a user namespace, a call without a process, a path that leads elsewhere) is Python's. */
#include "cdi/cdi.h"
#include "look.h"
#include "replay.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PATIENCE_MS 1000 /* as in nvc/kernel/processes.py */
#define DIRECTORY (O_PATH | O_DIRECTORY | O_CLOEXEC)

/* The root directory of a process. One that `runs` already can hold up who opens it. */
static int open_root(int number, bool runs)
{
    struct nvc_look ask = {.flags = DIRECTORY, .size = -1};

    snprintf(ask.path, sizeof(ask.path), "/proc/%d/root", number);
    if (!runs)
        return open(ask.path, DIRECTORY);
    return nvc_look(&ask, 1, PATIENCE_MS) == 1 ? ask.result : -1;
}

/* The root of a process that has not pivoted is the host's; the path is then seen from its own namespace. */
static int open_rootfs(int root, const char *path)
{
    int host = open("/", DIRECTORY), found = -1;
    bool right = false;

    if (host >= 0 && root >= 0 && cdi_same(root, host)) {
        found = nvc_open_below(root, path, O_PATH | O_DIRECTORY, 0);
        right = found >= 0 && !cdi_same(found, root) && nvc_is_mount_root(found) == 1;
    } else if (host >= 0 && root >= 0) {
        found = open(path, DIRECTORY);
        right = found >= 0 && cdi_same(found, root);
        shut(found);
        found = root;
        root = -1;
    }
    shut(host);
    shut(root);
    if (!right && found >= 0) {
        close(found);
        found = -1;
    }
    return found;
}

bool replay_open(int pid, bool runs, const char *rootfs, struct replay_container *container)
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
    if (container->proc < 0 || cdi_shares(container->pidfd, number, "mnt") != 0 ||
        cdi_shares(container->pidfd, number, "user") != 1)
        return false;
    container->mount_namespace = cdi_namespace(container->pidfd, number, "mnt");
    container->rootfs = open_rootfs(open_root(number, runs), rootfs);
    /* All was opened below /proc/PID: if the process still lives now, it was that process's. */
    return container->mount_namespace >= 0 && container->rootfs >= 0 &&
           nvc_pidfd_send_signal(container->pidfd, 0) == 0;
}
