/* The file is read, not mapped: whatever becomes of it, a read fails where a mapping would kill the program. */
#include "quota.h"

#include "process/log.h"
#include "process/place.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

enum { HEADER = offsetof(struct vgpu_quota, devices), PATIENCE = 200 };

static bool open_quota(struct process *in)
{
    char path[PLACE_MAX] = VGPU_QUOTA_FILE;
    /* The one before is not closed: the number is somebody else's by now, if it is wrong. */
    int fd = place_open(VGPU_QUOTA_FILE, O_RDONLY, path);
    if (fd < 0)
        LOG_ONCE("%s: %s; allocations are denied", path, strerror(errno));
    in->quota_fd = fd + 1;
    return fd >= 0;
}

static bool header_is_good(const struct vgpu_quota *quota)
{
    return quota->magic == VGPU_QUOTA_MAGIC && quota->version == VGPU_LAYOUT_VERSION &&
           quota->size == sizeof(*quota) && quota->device_count <= VGPU_DEVICES;
}

static bool read_at(const struct process *in, void *out, size_t size)
{
    return in->quota_fd && file_read(in->quota_fd - 1, out, size, 0) == (ssize_t)size;
}

static bool read_header(struct process *in, struct vgpu_quota *header)
{
    if (read_at(in, header, HEADER) && header_is_good(header))
        return true;
    return open_quota(in) && read_at(in, header, HEADER) && header_is_good(header);
}

bool quota_read(struct process *in)
{
    struct vgpu_quota fresh;
    for (int attempt = 0; attempt < PATIENCE; attempt++) {
        if (!read_header(in, &fresh)) {
            LOG_ONCE("the quota is missing, truncated or of another version: allocations are denied");
            return in->quota_good = false;
        }
        if (in->quota_good && fresh.sequence == in->quota.sequence) {
            in->quota.flags = fresh.flags;
            in->quota.swap = fresh.swap;
            return true;
        }
        uint64_t sequence = fresh.sequence;
        if (sequence % 2 == 0 && read_at(in, &fresh, sizeof(fresh)) && header_is_good(&fresh) &&
            fresh.sequence == sequence && read_at(in, &in->quota, HEADER) &&
            in->quota.sequence == sequence) {
            in->quota = fresh;
            return in->quota_good = true;
        }
        in->quota_good = false;
        sleep_us(50);
    }
    LOG_ONCE("the quota is truncated, or was left half written: allocations are denied");
    return false;
}

/* What nvcd writes in one piece each, without a change of `sequence`: from the pace to `kept_until`. */
void quota_refresh(const struct process *in, int position, struct vgpu_quota_device *device)
{
    struct vgpu_quota_device fresh;
    size_t from = offsetof(struct vgpu_quota_device, pace);
    uint64_t at = offsetof(struct vgpu_quota, devices) + (uint64_t)position * sizeof(fresh) + from;
    ssize_t size = (ssize_t)(offsetof(struct vgpu_quota_device, had) - from);
    bool read = file_read(in->quota_fd - 1, (char *)&fresh + from, (size_t)size, at) == size;
    device->pace = read ? fresh.pace : 0;
    device->kept_until = read ? fresh.kept_until : 0;
    device->room_until = read ? fresh.room_until : 0;
    device->answered = read ? fresh.answered : device->answered;
}
