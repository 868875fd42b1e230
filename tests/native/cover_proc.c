/* To be preloaded: before main, directories or files are mounted over others, in a mount namespace of its own. COVER says
 * which: a source and a target. The world's clock is read before that: it asks /proc how far it is ahead, too. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <time.h>
#include <unistd.h>

__attribute__((constructor)) static void cover(void)
{
    struct timespec now;
    char from[512], to[512];
    const char *words = getenv("COVER");
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!words || sscanf(words, "%511s %511s", from, to) != 2 || unshare(CLONE_NEWNS) ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount(from, to, NULL, MS_BIND, NULL)) {
        perror("COVER");
        _exit(99);
    }
}
