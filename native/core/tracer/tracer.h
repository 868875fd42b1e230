#ifndef NVC_TRACER_H
#define NVC_TRACER_H
#include <stdint.h>

/* bpf(2) and the file system bpf for nvc/kernel/tracer.py. Each returns 0, a descriptor (close-on-exec) or a number, or
 * -errno. */

int nvc_bpf_mount(const char *directory);
/* 1 when a directory is on a file system bpf. */
int nvc_bpf_is_mounted(const char *directory);
int nvc_bpf_map_create(uint32_t type, uint32_t key_size, uint32_t value_size, uint32_t entries,
                       uint32_t flags, const char *name);
/* A link: closing it, unless it is pinned, takes the program away. */
int nvc_bpf_tracepoint_open(int program, const char *tracepoint);
int nvc_bpf_pin(int object, const char *path);
int nvc_bpf_pinned(const char *path);
/* A command of bpf(2) for one entry. Sizes are the map's; -ENOENT when there is no such key. */
int nvc_bpf_map(int command, int map, const void *key, const void *value);
/* Copies a whole hash map, at most `room` entries, and returns how many. Entries that change meanwhile may be missing or
 * appear twice. */
int nvc_bpf_map_dump(int map, void *keys, uint32_t key_size, void *values, uint32_t value_size,
                     uint32_t room);

/* A ring buffer's memory: the consumer's page, the producer's page, and the data twice (kernel/bpf/ringbuf.c). */
struct nvc_ring {
    void *consumer;
    void *producer;
    uint64_t size; /* bytes of data, a power of two */
    uint64_t page;
};

int nvc_ring_open(int map, uint64_t size, struct nvc_ring *ring);
void nvc_ring_close(struct nvc_ring *ring);
/* Moves whole records of `record` bytes to `out`, at most `room`, and returns how many. Records of another size are
 * skipped. -EBADMSG: the positions cannot be. */
int nvc_ring_read(struct nvc_ring *ring, void *out, uint32_t record, uint32_t room);

#endif
