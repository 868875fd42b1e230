#include "estimate.h"

#include <stdatomic.h>
#include <string.h>

enum { UNIT = 16, TIMES = 4 };

static _Atomic uint32_t generation;

void estimates_forget(void)
{
    atomic_fetch_add_explicit(&generation, 1, memory_order_relaxed);
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}

uint64_t estimate_key(const void *function, const unsigned int shape[6])
{
    uint64_t hash = mix(0, (uintptr_t)function);
    for (int i = 0; i < 6; i += 2)
        hash = mix(hash, (uint64_t)shape[i] << 32 | shape[i + 1]);
    return hash ? hash : 1;
}

struct estimate *estimate_find(struct estimates *in, uint64_t key)
{
    uint32_t current = atomic_load_explicit(&generation, memory_order_relaxed);
    if (in->generation != current) {
        memset(in, 0, sizeof(*in));
        in->generation = current;
    }
    struct estimate *set = in->sets[key % ESTIMATE_SETS], *oldest = set;
    in->clock++;
    for (int i = 0; i < ESTIMATE_WAYS; i++) {
        if (set[i].key == key) {
            set[i].used = in->clock;
            return &set[i];
        }
        if (!set[i].key || in->clock - set[i].used > in->clock - oldest->used)
            oldest = &set[i];
    }
    *oldest = (struct estimate){.key = key, .used = in->clock};
    return oldest;
}

/* The mean of the last samples. The longest one, which the host or another process may have held up, counts as the one
 * before it; for the same reason none counts for more than TIMES the middle one. But none is left out: one function may
 * have two lengths in turn, as with matrices of one shape but of different depth. */
static uint64_t mean_of(const struct estimate *of)
{
    uint32_t order[ESTIMATE_SAMPLES], all = 0, below = 0, middle = 0;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < of->samples; i++) {
        uint32_t at = i;
        for (; at > 0 && of->ring[order[at - 1]] > of->ring[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
        all += of->weights[i];
    }
    for (uint32_t i = 0; 2 * below < all; i++) {
        below += of->weights[order[i]];
        middle = of->ring[order[i]];
    }
    for (uint32_t i = 0; i < of->samples; i++) {
        uint64_t most = (uint64_t)middle * TIMES;
        uint64_t sample = of->ring[order[i + 1 < ESTIMATE_SAMPLES ? i : i - 1]];
        sum += (sample < most ? sample : most) * of->weights[order[i]];
    }
    return sum * UNIT / all + 1;
}

void estimate_add(struct estimate *to, uint64_t ns, uint32_t launches, bool most)
{
    if (most && to->mean && ns > to->mean)
        ns = to->mean;
    if (to->doubt)
        to->doubt--;
    else if (to->samples == ESTIMATE_SAMPLES && ns > TIMES * to->mean)
        to->doubt = ESTIMATE_KNOWN;
    uint64_t units = ns / UNIT;
    to->ring[to->next] = units > UINT32_MAX ? UINT32_MAX : (uint32_t)units;
    to->weights[to->next] = (uint8_t)(launches < ESTIMATE_WEIGHT ? launches : ESTIMATE_WEIGHT);
    to->next = (uint8_t)((to->next + 1) % ESTIMATE_SAMPLES);
    if (to->samples < ESTIMATE_SAMPLES)
        to->samples++;
    to->since = 0;
    to->mean = mean_of(to);
}
