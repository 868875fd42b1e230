/* The merge, under the promises that need no reader of caches: its size is bounded, and it changes nothing twice. What a
 * merged cache leads to, the real ldconfig and the real loader say: test_ldcache_merge*.py. */
#pragma once
#include "ldcache_api.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUIRE(condition)                                                                                  \
    do {                                                                                                    \
        if (!(condition)) {                                                                                 \
            fprintf(stderr, "ldcache: not %s\n", #condition);                                               \
            abort();                                                                                        \
        }                                                                                                   \
    } while (0)

/* A number may overflow the loader's int: no order need exist among such names. */
static inline bool may_wrap(const uint8_t *bytes, size_t size)
{
    size_t digits = 0;
    for (size_t i = 0; i < size && digits < 10; i++)
        digits = '0' <= bytes[i] && bytes[i] <= '9' ? digits + 1 : 0;
    return digits >= 10;
}

/* What nvc_ldcache_merge returns. */
static inline int checked_merge(const uint8_t *old, size_t size, const struct nvc_ldcache_entry *add,
                                size_t count, uint8_t **merged, size_t *merged_size)
{
    uint8_t *again;
    size_t again_size, room = 2 * size + 256;
    int result = nvc_ldcache_merge(old, size, add, count, merged, merged_size);

    if (result != 0) {
        REQUIRE(*merged == NULL && (result == -EINVAL || (result == -EBADMSG && size > 0)));
        return result;
    }
    for (size_t i = 0; i < count; i++)
        room += strlen(add[i].soname) + strlen(add[i].path) + 2 + 48;
    REQUIRE(*merged_size <= room);
    if (may_wrap(*merged, *merged_size))
        return 0;
    REQUIRE(nvc_ldcache_merge(*merged, *merged_size, add, count, &again, &again_size) == 0);
    REQUIRE(again_size == *merged_size && memcmp(again, *merged, again_size) == 0);
    free(again);
    return 0;
}
