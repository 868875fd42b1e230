/* Feeds arbitrary memory to the reader of a BPF ring buffer. It stays in the buffer, and moves whole records alone. */
#include "tracer.h"

#include <stdlib.h>
#include <string.h>

#define PROMISE(condition)                                                                                  \
    do {                                                                                                    \
        if (!(condition))                                                                                   \
            abort();                                                                                        \
    } while (0)

enum { SIZE = 256, PAGE = 64, RECORD = 24, ROOM = 3 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t *consumer = calloc(1, PAGE);
    char *producer = calloc(1, PAGE + 2 * SIZE); /* exactly as large, so that a byte too far is seen */
    char out[ROOM * RECORD];

    if (!consumer || !producer || size < 16) {
        free(consumer);
        free(producer);
        return 0;
    }
    memcpy(consumer, data, 8);
    memcpy(producer, data + 8, 8);
    size = size - 16 > SIZE ? SIZE : size - 16;
    memcpy(producer + PAGE, data + 16, size); /* mapped twice, one after the other */
    memcpy(producer + PAGE + SIZE, data + 16, size);
    *consumer &= ~7ull;
    struct nvc_ring ring = {.consumer = consumer, .producer = producer, .size = SIZE, .page = PAGE};
    for (int i = 0; i < 8; i++) {
        uint64_t before = *consumer;
        int count = nvc_ring_read(&ring, out, RECORD, ROOM);

        PROMISE(count <= ROOM && *consumer - before <= SIZE + 8 && *consumer % 8 == 0);
        if (count <= 0)
            break;
        PROMISE(*consumer - before >= (uint64_t)count * (RECORD + 8));
    }
    free(consumer);
    free(producer);
    return 0;
}
