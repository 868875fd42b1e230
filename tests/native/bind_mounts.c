/* What a container has at its start, in a mount namespace that is there: words are its rootfs and a host's /etc. Binds
 * what standard input lists: a source, a target below the rootfs, and `ro` or nothing. One process does it: mount(8)
 * takes ten times as long to start as the kernel takes to mount. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { KEPT = MS_NOSUID | MS_NODEV | MS_NOEXEC };

static int bind_one(const char *source, const char *target, const char *options)
{
    struct statvfs seen;
    if (mount(source, target, NULL, MS_BIND, NULL))
        return -1;
    if (!*options)
        return 0;
    if (strcmp(options, "ro") != 0) {
        errno = EINVAL;
        return -1;
    }
    if (statvfs(target, &seen))
        return -1;
    return mount(NULL, target, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | (seen.f_flag & KEPT), NULL);
}

static int make_devices(void)
{
    return mount("none", "dev", "tmpfs", 0, NULL) || mknod("dev/nvidia1", S_IFCHR | 0666, makedev(195, 1)) ||
           mknod("dev/nvidia7", S_IFCHR | 0666, makedev(195, 9)) || mkdir("dev/dri", 0777) ||
           mknod("dev/dri/card1", S_IFCHR | 0666, makedev(226, 1));
}

int main(int argc, char **argv)
{
    char line[8192], source[4096], target[4096], options[64], path[8192];
    if (argc != 3 || mount(argv[2], "/etc", NULL, MS_BIND, NULL) ||
        mount(argv[1], argv[1], NULL, MS_BIND, NULL) || chdir(argv[1]) || make_devices()) {
        perror("what every container has");
        return 1;
    }
    while (fgets(line, sizeof(line), stdin)) {
        *options = 0;
        if (sscanf(line, "%4095s %4095s %63s", source, target, options) < 2 ||
            snprintf(path, sizeof(path), "%s%s", argv[1], target) >= (int)sizeof(path) ||
            bind_one(source, path, options)) {
            fprintf(stderr, "%s: %s", strerror(errno), line);
            return 1;
        }
    }
    return 0;
}
