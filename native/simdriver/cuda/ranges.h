/* Ordered sets of address ranges that do not overlap: a treap, also searched by size. */
#pragma once

#include <stdint.h>

struct range {
    uint64_t base, size;
    uint64_t largest; /* size of the largest range below this one, itself included */
    uint32_t priority;
    struct range *left, *right;
};

struct ranges {
    struct range *root;
    uint32_t seed;
};

void range_insert(struct ranges *set, struct range *range);
void range_remove(struct ranges *set, struct range *range);

/* The range that holds `address`, or NULL. */
struct range *range_at(const struct ranges *set, uint64_t address);

/* The first range whose base is not below `address`, or NULL. */
struct range *range_from(const struct ranges *set, uint64_t address);

/* The lowest range of at least `size` bytes, or NULL. */
struct range *range_fit(const struct ranges *set, uint64_t size);
