/* The file is mapped, because slots are added up with every allocation. A tenant may cut its own ledger short, and the
 * pages behind the end would kill whoever touches them: so its size is looked at before it is touched. */
#include "ledger.h"

#include "log.h"
#include "place.h"
#include "share.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

static bool is_ledger(const struct process *in, int fd)
{
    struct stat status;
    return file_status(fd, &status) && status.st_ino == in->inode && status.st_dev == in->device &&
           status.st_size >= (off_t)sizeof(struct vgpu_ledger);
}

/* One above the descriptors that programs count on being low, where the limit lets us. */
static int move_up(int fd)
{
    int high = fcntl(fd, F_DUPFD_CLOEXEC, 900);
    if (high < 0)
        high = fcntl(fd, F_DUPFD_CLOEXEC, 200);
    if (high < 0)
        return fd;
    file_close(fd);
    return high;
}

static bool map_file(struct process *in, int fd, const struct stat *status)
{
    if (in->ledger && in->inode == status->st_ino && in->device == status->st_dev)
        return true;
    struct vgpu_ledger *ledger = mmap(NULL, sizeof(*ledger), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (ledger == MAP_FAILED)
        return false;
    if (ledger->magic != VGPU_LEDGER_MAGIC || ledger->version != VGPU_LAYOUT_VERSION ||
        ledger->size != sizeof(*ledger) || ledger->slot_count != VGPU_SLOTS) {
        munmap(ledger, sizeof(*ledger));
        return false;
    }
    in->ledger = ledger; /* an old mapping stays: another thread may be reading it */
    in->inode = status->st_ino;
    in->device = status->st_dev;
    return true;
}

bool ledger_open(struct process *in)
{
    char path[PLACE_MAX];
    struct stat status;
    if (in->ledger_fd && in->ledger && is_ledger(in, in->ledger_fd - 1))
        return true;
    /* Lost, with the lock on the slot; the number may be somebody else's by now, so it is not closed. */
    in->ledger_fd = 0;
    in->slot = 0;
    if (!place_join(VGPU_LEDGER_FILE, path))
        return false;
    int fd = file_open(path, O_RDWR);
    if (fd < 0) {
        LOG_ONCE("%s: %s; allocations are denied", path, strerror(errno));
        return false;
    }
    fd = move_up(fd);
    if (!file_status(fd, &status) || status.st_size < (off_t)sizeof(struct vgpu_ledger) ||
        !map_file(in, fd, &status)) {
        LOG_ONCE("%s is truncated or of another version: allocations are denied", path);
        file_close(fd);
        return false;
    }
    in->ledger_fd = fd + 1;
    return true;
}

static bool set_lock(const struct process *in, uint32_t byte, short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int result;
    do {
        result = fcntl(in->ledger_fd - 1, F_OFD_SETLK, &lock);
    } while (result != 0 && errno == EINTR);
    return result == 0;
}

bool ledger_lock_byte(const struct process *in, uint32_t byte)
{
    return set_lock(in, byte, F_WRLCK);
}

void ledger_unlock_byte(const struct process *in, uint32_t byte)
{
    set_lock(in, byte, F_UNLCK);
}

bool ledger_lives(const struct process *in, uint32_t slot)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    if (in->slot == slot + 1)
        return true; /* the kernel does not report our own lock to us */
    return fcntl(in->ledger_fd - 1, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

struct vgpu_slot *ledger_slot(const struct process *in)
{
    return &in->ledger->slots[in->slot - 1];
}

uint32_t ledger_high_water(const struct process *in)
{
    uint32_t high = SHARED_READ(in->ledger->high_water);
    if (high < in->slot)
        high = in->slot;
    return high < VGPU_SLOTS ? high : VGPU_SLOTS;
}

void ledger_publish(struct process *in, int position)
{
    if (!in->slot)
        return;
    struct vgpu_amount *amount = &ledger_slot(in)->amounts[position];
    /* What moves from tentative to committed is in both for a moment, never in neither. */
    if (in->own[position].committed >= SHARED_READ(amount->committed)) {
        SHARED_WRITE(amount->committed, in->own[position].committed);
        SHARED_WRITE(amount->tentative, in->own[position].tentative);
    } else {
        SHARED_WRITE(amount->tentative, in->own[position].tentative);
        SHARED_WRITE(amount->committed, in->own[position].committed);
    }
    SHARED_ADD(amount->changes, 1);
}

/* The caller holds the slot's lock. */
static void zero_slot(struct vgpu_slot *slot)
{
    for (int i = 0; i < VGPU_DEVICES; i++) {
        struct vgpu_amount *amount = &slot->amounts[i];
        if (!(SHARED_READ(amount->committed) | SHARED_READ(amount->tentative) |
              SHARED_READ(amount->inherited)))
            continue;
        SHARED_WRITE(amount->tentative, 0);
        SHARED_WRITE(amount->committed, 0);
        SHARED_WRITE(amount->inherited, 0);
        SHARED_ADD(amount->changes, 1);
    }
    SHARED_ADD(slot->generation, 1);
    SHARED_WRITE(slot->pid, 0);
}

static void take_name(struct vgpu_slot *slot)
{
    char name[sizeof(slot->name)] = "";
    int fd = file_open("/proc/self/comm", O_RDONLY);
    ssize_t length = fd >= 0 ? file_read(fd, name, sizeof(name) - 1, 0) : 0;
    if (fd >= 0)
        file_close(fd);
    name[length > 0 ? length - 1 : 0] = '\0'; /* the line's end */
    memcpy(slot->name, name, sizeof(name));
}

/* The lowest that nobody lives in: all that were ever used are added up with every allocation. */
static bool claim(struct process *in)
{
    for (uint32_t i = 0; i < VGPU_SLOTS; i++) {
        struct vgpu_slot *slot = &in->ledger->slots[i];
        if (!ledger_lock_byte(in, i))
            continue;
        if (SHARED_READ(slot->pid) && !share_bury(in, i)) {
            ledger_unlock_byte(in, i);
            continue;
        }
        zero_slot(slot);
        in->slot = i + 1;
        uint32_t high = SHARED_READ(in->ledger->high_water);
        while (high <= i && !__atomic_compare_exchange_n(&in->ledger->high_water, &high, i + 1, false,
                                                         __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            ;
        take_name(slot);
        SHARED_WRITE(slot->claimed, now_ns(CLOCK_BOOTTIME));
        SHARED_WRITE(slot->pid, (uint32_t)getpid());
        for (int position = 0; position < VGPU_DEVICES; position++)
            if (in->own[position].committed | in->own[position].tentative)
                ledger_publish(in, position);
        return true;
    }
    LOG_ONCE("more than %d processes of this container use a GPU: allocations are denied", VGPU_SLOTS);
    return false;
}

bool ledger_enter(struct process *in)
{
    return ledger_open(in) && (in->slot || claim(in));
}

bool ledger_reap(struct process *in)
{
    bool found = false;
    uint32_t high = ledger_high_water(in);
    for (uint32_t i = 0; i < high; i++) {
        struct vgpu_slot *slot = &in->ledger->slots[i];
        if (!SHARED_READ(slot->pid) || ledger_lives(in, i) || !ledger_lock_byte(in, i))
            continue;
        if (SHARED_READ(slot->pid) && share_bury(in, i)) {
            zero_slot(slot);
            found = true;
        }
        ledger_unlock_byte(in, i);
    }
    in->reaped_at = now_ns(CLOCK_MONOTONIC_COARSE);
    return found;
}
