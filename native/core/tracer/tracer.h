#ifndef NVC_TRACER_H
#define NVC_TRACER_H
#include <stdint.h>

/* For nvc/kernel/tracing.py. Each returns 0 or a number, or -errno. */

int nvc_bpf_mount(const char *directory);
/* 1 when a directory is on a file system bpf. */
int nvc_bpf_is_mounted(const char *directory);

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
