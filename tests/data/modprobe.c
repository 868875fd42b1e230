/* A modprobe for tests, static, for a driver root without a C library: notes how it was called and what it may do,
 * then "loads" the module by making what the kernel would show of it. */
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[2] = {{0}};
    FILE *log = fopen("/modprobe.log", "a");
    char path[256], *letter;

    if (!log)
        return 2;
    syscall(SYS_capget, &header, sets);
    fprintf(log, "%s %s caps=%x", argv[0], argc == 2 ? argv[1] : "?", sets[0].permitted);
    for (char **entry = environ; *entry; entry++)
        fprintf(log, " %s", *entry);
    for (int fd = 3; fd < 1024; fd++)
        if (fcntl(fd, F_GETFD) >= 0 && fd != fileno(log))
            fprintf(log, " fd%d", fd);
    fprintf(log, "\n");
    fclose(log);
    if (argc != 2 || access("/modprobe.refuses", F_OK) == 0)
        return 1;
    snprintf(path, sizeof(path), "/sys/module/%s", argv[1]);
    for (letter = path; *letter; letter++)
        if (*letter == '-')
            *letter = '_';
    mkdir(path, 0755);
    strncat(path, "/initstate", sizeof(path) - strlen(path) - 1);
    close(open(path, O_CREAT | O_WRONLY, 0444));
    while (access("/modprobe.hangs", F_OK) == 0)
        pause();
    return 0;
}
