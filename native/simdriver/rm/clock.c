/* The time of the host, or the one that a test advances: tests/native/virtual/world.h. The server looks at that clock and
 * takes no part: who calls waits for the answer in real time, and whose turn it is has the time that counts. */
#include "server.h"
#include "world.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

int clock_open(struct server *server, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    void *mapped = mmap(NULL, sizeof(struct world), PROT_READ, MAP_SHARED, fd, 0);
    int error = errno;
    close(fd);
    if (mapped == MAP_FAILED)
        return error;
    server->world = mapped;
    return server->world->size == sizeof(struct world) ? 0 : EINVAL;
}

/* What our time namespace adds to CLOCK_BOOTTIME: the programs of a test add it to that time, tests/native/virtual/clocks.c. */
static uint64_t ahead(void)
{
    static int64_t offset;
    static bool known;
    char line[128];
    FILE *file = known ? NULL : fopen("/proc/self/timens_offsets", "re");
    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "boottime %" SCNd64, &offset) == 1)
            offset *= 1000000000;
    if (file)
        fclose(file);
    known = true;
    return (uint64_t)offset;
}

uint64_t clock_now(const struct server *server)
{
    const struct world *clock = server->world;
    if (!clock)
        return sim_now();
    uint64_t now = atomic_load(&clock->now);
    uint32_t holder = atomic_load(&clock->holder);
    if (holder && holder <= WORLD_PARTICIPANTS && clock->participants[holder - 1].time > now)
        now = clock->participants[holder - 1].time;
    return now + ahead();
}

void clock_wait(const struct server *server, uint64_t until)
{
    uint64_t now = clock_now(server);
    if (server->world || until <= now)
        return;
    struct timespec left = {.tv_sec = (time_t)((until - now) / 1000000000),
                            .tv_nsec = (long)((until - now) % 1000000000)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}
