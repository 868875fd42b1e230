/* bpf(2) for programs on raw tracepoints, their maps, and what is pinned. */
#include "tracer.h"
#include "_bpf.h"

#include <errno.h>
#include <sys/mount.h>
#include <sys/vfs.h>
#include <unistd.h>

#define BPF_FS 0xcafe4a11 /* linux/magic.h: BPF_FS_MAGIC */

int nvc_bpf_mount(const char *directory)
{
    return mount("bpf", directory, "bpf", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0700") ? -errno : 0;
}

int nvc_bpf_is_mounted(const char *directory)
{
    struct statfs found;

    if (statfs(directory, &found))
        return -errno;
    return (uint32_t)found.f_type == BPF_FS;
}

int nvc_bpf_map_create(uint32_t type, uint32_t key_size, uint32_t value_size, uint32_t entries,
                       uint32_t flags, const char *name)
{
    BPF_ATTR(attr);
    attr.map_type = type;
    attr.key_size = key_size;
    attr.value_size = value_size;
    attr.max_entries = entries;
    attr.map_flags = flags;
    nvc_bpf_name(attr.map_name, sizeof(attr.map_name), name);
    return nvc_bpf(BPF_MAP_CREATE, &attr);
}

int nvc_bpf_tracepoint_open(int program, const char *tracepoint)
{
    BPF_ATTR(attr);
    attr.raw_tracepoint.name = nvc_bpf_address(tracepoint);
    attr.raw_tracepoint.prog_fd = (uint32_t)program;
    return nvc_bpf(BPF_RAW_TRACEPOINT_OPEN, &attr);
}

int nvc_bpf_pin(int object, const char *path)
{
    BPF_ATTR(attr);
    attr.pathname = nvc_bpf_address(path);
    attr.bpf_fd = (uint32_t)object;
    return nvc_bpf(BPF_OBJ_PIN, &attr);
}

int nvc_bpf_pinned(const char *path)
{
    BPF_ATTR(attr);
    attr.pathname = nvc_bpf_address(path);
    return nvc_bpf(BPF_OBJ_GET, &attr);
}

int nvc_bpf_map(int command, int map, const void *key, const void *value)
{
    BPF_ATTR(attr);
    attr.map_fd = (uint32_t)map;
    attr.key = nvc_bpf_address(key);
    attr.value = nvc_bpf_address(value);
    return nvc_bpf(command, &attr);
}

int nvc_bpf_map_dump(int map, void *keys, uint32_t key_size, void *values, uint32_t value_size,
                     uint32_t room)
{
    uint32_t total = 0, position = 0;

    while (total < room) {
        BPF_ATTR(attr);
        attr.batch.in_batch = total ? nvc_bpf_address(&position) : 0;
        attr.batch.out_batch = nvc_bpf_address(&position);
        attr.batch.keys = nvc_bpf_address((char *)keys + (size_t)total * key_size);
        attr.batch.values = nvc_bpf_address((char *)values + (size_t)total * value_size);
        attr.batch.count = room - total;
        attr.batch.map_fd = (uint32_t)map;
        int result = nvc_bpf(BPF_MAP_LOOKUP_BATCH, &attr);

        if (result < 0 && result != -ENOENT)
            return result; /* -ENOSPC: a bucket has more entries than there is room for */
        total += attr.batch.count;
        if (result == -ENOENT || attr.batch.count == 0)
            break;
    }
    return (int)total;
}
