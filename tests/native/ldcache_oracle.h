/* A second opinion on merged loader caches: reads them the way glibc's loader does and shares no code with the merge. */
#ifndef NVC_LDCACHE_ORACLE_H
#define NVC_LDCACHE_ORACLE_H
#include "ldcache_api.h"

#include <stdbool.h>

struct found_entry {
    const char *name;
    const char *path;
    const char *hwcaps; /* name of the glibc-hwcaps directory, NULL when there is none to be read */
    uint64_t hwcap;
    uint32_t flags;
    uint32_t os_version;
};

struct found_cache {
    bool usable;   /* a loader would search it */
    bool combined; /* a new part behind an old one */
    bool wraps;    /* a name holds a number that overflows the loader's int: no order need exist */
    bool sorted;
    size_t count; /* entries with strings in bounds */
    struct found_entry *entries;
};

enum loader {
    LOADER_LEGACY, /* glibc 2.2 to 2.32 */
    LOADER_HWCAPS, /* glibc 2.33 and later, every glibc-hwcaps directory supported */
    LOADER_COUNT,
};

struct found_cache oracle_read(const uint8_t *bytes, size_t size);

/* The path that a loader for `flags` finds, or NULL. */
const char *oracle_lookup(const uint8_t *bytes, size_t size, enum loader loader, const char *name,
                          uint32_t flags);

/* Merges, and aborts with a message on stderr when the result breaks a promise of ldcache_api.h. Returns what
 * nvc_ldcache_merge does; the result is freed. */
int oracle_merge(const uint8_t *old, size_t size, const struct nvc_ldcache_entry *add, size_t count);

#endif
