/* What one launch takes of the device, by what is launched: a function with its grid and block, or a graph. */
#ifndef NVC_VGPU_ESTIMATE_H
#define NVC_VGPU_ESTIMATE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    ESTIMATE_SAMPLES = 16,
    ESTIMATE_KNOWN = 8,
    ESTIMATE_EVERY = 256,
    ESTIMATE_WEIGHT = 8, /* of a sample of many launches, at most */
    ESTIMATE_SETS = 512,
    ESTIMATE_WAYS = 4
};

struct estimate {
    uint64_t key;
    uint64_t mean;  /* nanoseconds; 0: no sample yet */
    uint64_t timed; /* when one was last chosen to be timed alone, CLOCK_MONOTONIC, nanoseconds */
    uint32_t since; /* launches after the last sample */
    uint32_t used;  /* when, in launches of all */
    uint8_t samples, next;
    uint8_t doubt; /* so many launches are to be timed, since one took far longer than estimated */
    uint32_t ring[ESTIMATE_SAMPLES]; /* the last samples, in units of 16 ns */
    uint8_t weights[ESTIMATE_SAMPLES];
};

struct estimates {
    uint32_t clock, generation;
    struct estimate sets[ESTIMATE_SETS][ESTIMATE_WAYS];
};

/* The key of a launch. */
uint64_t estimate_key(const void *function, const unsigned int shape[6]);

/* The one of a key, which is new if it was not known. The caller has the lock of what `in` belongs to. */
struct estimate *estimate_find(struct estimates *in, uint64_t key);

/* A sample: each of so many launches, one behind the other, took `ns`; `most`: at most. */
void estimate_add(struct estimate *to, uint64_t ns, uint32_t launches, bool most);

/* Whether the next launch should be timed by itself. */
static inline bool estimate_is_due(const struct estimate *of)
{
    return of->samples < ESTIMATE_KNOWN || of->since >= ESTIMATE_EVERY || of->doubt;
}

/* Handles of functions and graphs may mean others from now on. */
void estimates_forget(void);

#endif
