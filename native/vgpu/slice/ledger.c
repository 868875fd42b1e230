/* The file is read and written by calls of the system: a tenant may cut its own ledger short, and a mapping would kill
 * whoever touches it then. */
#include "ledger.h"

#include "process/log.h"
#include "process/place.h"
#include "share.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { PATIENCE_MS = 20 };

bool ledger_read(const struct process *in, uint64_t offset, void *out, size_t size)
{
    return in->ledger_fd && file_read(in->ledger_fd - 1, out, size, offset) == (ssize_t)size;
}

bool ledger_write(const struct process *in, uint64_t offset, const void *from, size_t size)
{
    return in->ledger_fd && syscall(SYS_pwrite64, in->ledger_fd - 1, from, size, offset) == (ssize_t)size;
}

/* Also whether the descriptor is still the ledger's, and not somebody's who got its number. */
static bool read_head(struct process *in)
{
    const struct vgpu_ledger_head *head = &in->head;
    return ledger_read(in, 0, &in->head, sizeof(in->head)) && head->magic == VGPU_LEDGER_MAGIC &&
           head->version == VGPU_LAYOUT_VERSION && head->size == sizeof(struct vgpu_ledger) &&
           head->slot_count == VGPU_SLOTS;
}

bool ledger_is_whole(const struct process *in)
{
    struct stat status;
    return in->ledger && file_status(in->ledger_fd - 1, &status) && status.st_ino == in->inode &&
           status.st_dev == in->device && status.st_size >= (off_t)sizeof(struct vgpu_ledger);
}

uint64_t ledger_raise(const struct process *in, uint64_t offset)
{
    uint64_t value;
    if (!ledger_read(in, offset, &value, sizeof(value)))
        return 0;
    value++;
    return ledger_write(in, offset, &value, sizeof(value)) ? value : 0;
}

static bool map_file(struct process *in, int fd, const struct stat *status)
{
    if (in->ledger && in->inode == status->st_ino && in->device == status->st_dev)
        return true;
    struct vgpu_ledger *ledger = mmap(NULL, sizeof(*ledger), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (ledger == MAP_FAILED)
        return false;
    in->ledger = ledger; /* an old mapping stays: another thread may be reading it */
    in->inode = status->st_ino;
    in->device = status->st_dev;
    return true;
}

bool ledger_open(struct process *in)
{
    char path[PLACE_MAX] = VGPU_LEDGER_FILE;
    struct stat status;
    if (in->ledger_fd && read_head(in))
        return true;
    /* Lost, with the lock on the slot; the number may be somebody else's by now, so it is not closed. */
    in->ledger_fd = 0;
    in->slot = 0;
    int fd = place_open(VGPU_LEDGER_FILE, O_RDWR, path);
    if (fd < 0) {
        LOG_ONCE("%s: %s; allocations are denied", path, strerror(errno));
        return false;
    }
    in->ledger_fd = fd + 1;
    if (!file_status(fd, &status) || status.st_size < (off_t)sizeof(struct vgpu_ledger) || !read_head(in) ||
        !map_file(in, fd, &status)) {
        LOG_ONCE("%s is truncated or of another version: allocations are denied", path);
        in->ledger_fd = 0;
        file_close(fd);
        return false;
    }
    return true;
}

/* False: another has it. */
static bool set_lock(const struct process *in, uint32_t byte, short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int result;
    do {
        result = fcntl(in->ledger_fd - 1, F_OFD_SETLK, &lock);
    } while (result != 0 && errno == EINTR);
    return result == 0;
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

bool ledger_await_byte(const struct process *in, uint32_t byte)
{
    uint64_t deadline = 0;
    while (!set_lock(in, byte, F_WRLCK)) {
        uint64_t now = now_ns(CLOCK_MONOTONIC);
        if (!deadline)
            deadline = now + PATIENCE_MS * UINT64_C(1000000);
        if (now > deadline)
            return false;
        sleep_us(100);
    }
    return true;
}

uint32_t ledger_high_water(const struct process *in)
{
    uint32_t high = in->head.high_water;
    if (high < in->slot)
        high = in->slot;
    return high < VGPU_SLOTS ? high : VGPU_SLOTS;
}

/* Where nobody lets us change it in turn, the most there can be is right as well. */
static bool raise_high_water(struct process *in, uint32_t slots)
{
    bool locked = ledger_await_byte(in, LEDGER_HEAD_BYTE);
    bool good = read_head(in);
    if (good && in->head.high_water < slots) {
        in->head.high_water = locked ? slots : VGPU_SLOTS;
        good = ledger_write(in, LEDGER_AT(head.high_water), &in->head.high_water, sizeof(uint32_t));
    }
    if (locked)
        ledger_unlock_byte(in, LEDGER_HEAD_BYTE);
    return good;
}

bool ledger_publish(struct process *in, int position)
{
    struct vgpu_amount *shown = &in->shown[position];
    const struct own *own = &in->own[position];
    if (!in->slot)
        return false;
    shown->taken = add_capped(own->committed, own->tentative);
    shown->tentative = own->tentative;
    shown->changes++;
    return ledger_write(in, ledger_amount_at(position, in->slot - 1), shown,
                        offsetof(struct vgpu_amount, inherited));
}

/* The caller holds the slot's lock. `amounts`: what is in the slot then. */
static bool zero_slot(const struct process *in, uint32_t slot, struct vgpu_slot *header,
                      struct vgpu_amount amounts[VGPU_DEVICES])
{
    for (int position = 0; position < VGPU_DEVICES; position++) {
        struct vgpu_amount *amount = &amounts[position];
        if (!ledger_read(in, ledger_amount_at(position, slot), amount, sizeof(*amount)))
            return false;
        if (!(amount->taken | amount->tentative | amount->inherited))
            continue;
        *amount = (struct vgpu_amount){.changes = amount->changes + 1};
        if (!ledger_write(in, ledger_amount_at(position, slot), amount, sizeof(*amount)))
            return false;
    }
    header->generation++;
    header->pid = 0;
    return ledger_write(in, ledger_slot_at(slot), header, sizeof(*header));
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

/* Its lock is held. */
static bool move_in(struct process *in, uint32_t slot)
{
    struct vgpu_slot header;
    if (!ledger_read(in, ledger_slot_at(slot), &header, sizeof(header)) ||
        (header.pid && !share_bury(in, slot)) || !zero_slot(in, slot, &header, in->shown))
        return false;
    take_name(&header);
    memset((char *)&header + offsetof(struct vgpu_slot, swapped), 0,
           sizeof(header) - offsetof(struct vgpu_slot, swapped));
    header.claimed = now_ns(CLOCK_BOOTTIME);
    header.pid = (uint32_t)getpid();
    if (!raise_high_water(in, slot + 1) || !ledger_write(in, ledger_slot_at(slot), &header, sizeof(header)))
        return false;
    in->slot = slot + 1;
    in->generation = header.generation;
    for (int position = 0; position < VGPU_DEVICES; position++)
        if (in->own[position].committed | in->own[position].tentative)
            ledger_publish(in, position);
    return true;
}

/* The lowest that nobody lives in: all that were ever used are added up with every allocation. */
static bool claim(struct process *in)
{
    struct vgpu_slot last;
    if (!ledger_read(in, ledger_slot_at(VGPU_SLOTS - 1), &last, sizeof(last)))
        return false;
    for (uint32_t i = 0; i < VGPU_SLOTS; i++) {
        if (!set_lock(in, i, F_WRLCK))
            continue;
        if (move_in(in, i))
            return true;
        ledger_unlock_byte(in, i);
    }
    LOG_ONCE("more than %d processes of this container use a GPU: allocations are denied", VGPU_SLOTS);
    return false;
}

bool ledger_enter(struct process *in)
{
    if (!ledger_open(in))
        return false;
    /* Whoever made it lower did not know of us. */
    if (in->slot && in->head.high_water < in->slot)
        raise_high_water(in, in->slot);
    return in->slot || claim(in);
}

static bool reap(struct process *in, uint32_t slot)
{
    struct vgpu_slot header;
    struct vgpu_amount zero[VGPU_DEVICES];
    return ledger_read(in, ledger_slot_at(slot), &header, sizeof(header)) && header.pid &&
           share_bury(in, slot) && zero_slot(in, slot, &header, zero);
}

bool ledger_reap(struct process *in)
{
    bool found = false;
    uint32_t high = ledger_high_water(in);
    for (uint32_t i = 0; i < high; i++) {
        uint32_t pid;
        if (!ledger_read(in, ledger_slot_at(i), &pid, sizeof(pid)) || !pid || ledger_lives(in, i) ||
            !set_lock(in, i, F_WRLCK))
            continue;
        found |= reap(in, i);
        ledger_unlock_byte(in, i);
    }
    in->reaped_at = now_ns(CLOCK_MONOTONIC_COARSE);
    return found;
}
