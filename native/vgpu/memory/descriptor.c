#include "descriptor.h"

#include "charge/charge.h"

#include <stdio.h>

/* A mark is the offset of 2^16 places of 2^22 bytes each. A descriptor has one of them, as many bytes long as its memory
 * has pages. */
enum { PLACE_BITS = 22, PLACES = 1 << 16, MARK_BITS = 38, TRIES = 64, HIGH = 512 };

#define FIRST_MARK (INT64_C(1) << MARK_BITS)

static uint64_t draw(void)
{
    uint64_t number;
    if (syscall(SYS_getrandom, &number, sizeof(number), 0) != sizeof(number))
        number = now_ns(CLOCK_MONOTONIC) * UINT64_C(0x9e3779b97f4a7c15);
    return number;
}

/* What another than the asking owner has locked from an offset on; `command` says who asks. False: nothing. */
static bool locked(int fd, int command, int64_t from, int64_t length, struct flock *found)
{
    *found = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = from, .l_len = length};
    return fcntl(fd, command, found) == 0 && found->l_type != F_UNLCK;
}

bool descriptor_mark(int fd, uint64_t *mark, uint64_t bytes)
{
    struct flock seen;
    for (int i = 0; i < TRIES; i++) {
        uint64_t number = draw();
        uint64_t base = *mark ? *mark : (uint64_t)FIRST_MARK * (1 + (number >> 40 & 0xffffff));
        struct flock lock = {.l_type = F_WRLCK,
                             .l_whence = SEEK_SET,
                             .l_start = (int64_t)(base + (number % PLACES << PLACE_BITS)),
                             .l_len = (int64_t)least(bytes / PAGE, (1 << PLACE_BITS) - 1)};
        if (!lock.l_len || (!*mark && locked(fd, F_GETLK, (int64_t)base, FIRST_MARK, &seen)))
            continue;
        if (fcntl(fd, F_OFD_SETLK, &lock) == 0) {
            *mark = base;
            return true;
        }
    }
    return false;
}

/* To the process, the locks of all open files are another's; to an open file, its own is none. */
bool descriptor_read(int fd, uint64_t *mark, uint64_t *bytes)
{
    struct flock any, others;
    for (int64_t from = FIRST_MARK; locked(fd, F_GETLK, from, 0, &any); from = any.l_start + any.l_len) {
        if (any.l_start < from || any.l_len <= 0)
            return false;
        if (locked(fd, F_OFD_GETLK, any.l_start, any.l_len, &others))
            continue;
        *mark = (uint64_t)(any.l_start / FIRST_MARK * FIRST_MARK);
        *bytes = (uint64_t)any.l_len * PAGE;
        return true;
    }
    return false;
}

static bool is_of(int fd, const struct probe *probe)
{
    struct stat status;
    return file_status(fd, &status) && status.st_dev == probe->device && status.st_ino == probe->inode;
}

/* One serves for all files of the same inode. */
bool descriptor_probe(int fd, struct probe *out)
{
    char path[32];
    struct stat status;
    struct process *in = process();
    if (!in || !file_status(fd, &status))
        return false;
    *out = (struct probe){.device = status.st_dev, .inode = status.st_ino};
    bool shared = S_ISCHR(status.st_mode);
    int kept = shared ? atomic_load(&in->probe) : 0;
    if (kept && is_of(kept - 1, out)) {
        out->fd = kept;
        return true;
    }
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int low = file_open(path, O_RDWR), high = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, HIGH);
    if (low >= 0)
        file_close(low);
    if (high >= 0 && !is_of(high, out)) {
        file_close(high);
        high = -1;
    }
    out->fd = high + 1;
    if (shared && high >= 0)
        atomic_store(&in->probe, high + 1);
    return high >= 0;
}

void descriptor_unprobe(const struct probe *probe)
{
    struct process *in = process();
    if (in && probe->fd && probe->fd != atomic_load(&in->probe) && is_of(probe->fd - 1, probe))
        file_close(probe->fd - 1);
}

bool descriptor_lives(const struct probe *probe, uint64_t mark)
{
    struct flock seen;
    return !probe->fd || !is_of(probe->fd - 1, probe) ||
           locked(probe->fd - 1, F_OFD_GETLK, (int64_t)mark, FIRST_MARK, &seen);
}
