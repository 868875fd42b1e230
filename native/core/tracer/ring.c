/* The reader's side of a BPF ring buffer: kernel/bpf/ringbuf.c, Documentation/bpf/ringbuf.rst. */
#include "tracer.h"

#include <errno.h>
#include <linux/bpf.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int nvc_ring_open(int map, uint64_t size, struct nvc_ring *ring)
{
    long page = sysconf(_SC_PAGESIZE);

    memset(ring, 0, sizeof(*ring));
    if (page <= 0 || size == 0 || size & (size - 1))
        return -EINVAL;
    ring->size = size;
    ring->page = (uint64_t)page;
    ring->consumer = mmap(NULL, ring->page, PROT_READ | PROT_WRITE, MAP_SHARED, map, 0);
    if (ring->consumer == MAP_FAILED) {
        ring->consumer = NULL;
        return -errno;
    }
    ring->producer = mmap(NULL, ring->page + 2 * size, PROT_READ, MAP_SHARED, map, page);
    if (ring->producer == MAP_FAILED) {
        int error = -errno;

        ring->producer = NULL;
        nvc_ring_close(ring);
        return error;
    }
    return 0;
}

void nvc_ring_close(struct nvc_ring *ring)
{
    if (ring->consumer)
        munmap(ring->consumer, ring->page);
    if (ring->producer)
        munmap(ring->producer, ring->page + 2 * ring->size);
    memset(ring, 0, sizeof(*ring));
}

int nvc_ring_read(struct nvc_ring *ring, void *out, uint32_t record, uint32_t room)
{
    uint64_t *consumed = ring->consumer;
    const uint64_t *produced = ring->producer;
    const char *data = (const char *)ring->producer + ring->page;
    uint64_t at = __atomic_load_n(consumed, __ATOMIC_RELAXED);
    uint32_t count = 0;

    while (count < room) {
        uint64_t end = __atomic_load_n(produced, __ATOMIC_ACQUIRE);

        if (at == end)
            break;
        if (end - at > ring->size)
            return -EBADMSG;
        const char *here = data + (at & (ring->size - 1));
        uint32_t header = __atomic_load_n((const uint32_t *)(const void *)here, __ATOMIC_ACQUIRE);

        if (header & BPF_RINGBUF_BUSY_BIT)
            break;
        uint32_t length = header & ~(uint32_t)BPF_RINGBUF_DISCARD_BIT;

        if (length > end - at)
            return -EBADMSG;
        if (!(header & BPF_RINGBUF_DISCARD_BIT) && length == record)
            memcpy((char *)out + (size_t)record * count++, here + BPF_RINGBUF_HDR_SZ, record);
        at += ((uint64_t)length + BPF_RINGBUF_HDR_SZ + 7) & ~7ull;
        __atomic_store_n(consumed, at, __ATOMIC_RELEASE);
    }
    return (int)count;
}
