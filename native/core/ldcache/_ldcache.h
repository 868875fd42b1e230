/* The loader cache (/etc/ld.so.cache) as glibc's ldconfig writes it and its loader reads it; offsets in bytes.
 *
 *   old part   "ld.so-1.7.0" and a pad byte, u32 count; per entry i32 flags, u32 name, u32 path
 *   new part   at a multiple of 8: "glibc-ld.so.cache1.1", u32 count, u32 size of strings, u8 byte order, 3 pad bytes,
 *              u32 extension directory, 3 unused u32; per entry i32 flags, u32 name, u32 path, u32 OS version, u64 hwcap
 *   strings    of both parts: offsets count from the new part's first byte; without one, from the end of the old part.
 *              Every loader since glibc 2.2 reads the new part alone, so that no old one is written
 *   directory  at a multiple of 4, since glibc 2.33: u32 magic, u32 count; per section u32 tag, flags, offset, size
 *
 * Offsets to the directory, in it, and in its section of glibc-hwcaps names count from the first byte of the file, for
 * that is how the loader reads them (ldconfig -c compat of glibc 2.33 and later writes the names' offsets from the
 * new part, so its own loader cannot read them; they are taken as the loader takes them).
 */
#pragma once
#include "ldcache_api.h"

#include <stdbool.h>
#include <string.h>

#define OLD_MAGIC "ld.so-1.7.0"
#define NEW_MAGIC "glibc-ld.so.cache1.1"
#define EXTENSION_MAGIC 0xeaa42174u

enum {
    OLD_HEADER = 16,
    OLD_ENTRY = 12,
    NEW_HEADER = 48,
    NEW_ENTRY = 24,
    NEW_COUNT_AT = 20,
    NEW_STRINGS_AT = 24,
    NEW_ORDER_AT = 28,
    NEW_DIRECTORY_AT = 32,
    DIRECTORY_HEADER = 8,
    DIRECTORY_ENTRY = 16,
    TAG_GENERATOR = 0,
    TAG_HWCAPS = 1,
    ORDER_MASK = 3,
    ORDER_NATIVE = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? 2 : 3,
    NAME_BYTES_MAX = 255, /* NAME_MAX: a longer one names no file */
    PATH_BYTES_MAX = 4095,
    HWCAPS_MAX = 1024, /* names of directories; glibc knows four */
    GENERATOR_MAX = 1024,
};

struct ldcache_record {
    const char *name; /* in the old cache, or an added entry's that it does not have */
    const char *path;
    uint64_t hwcap;
    uint32_t flags;
    uint32_t os_version;
    bool added;
};

/* What a cache file holds, in views of its bytes. `hwcaps` are file offsets of terminated names, 0 for an unusable
 * one: their order is what the hwcap field of entries refers to. */
struct ldcache_view {
    const uint8_t *bytes;
    size_t size;
    struct ldcache_record *records;
    size_t count;
    size_t left_out; /* entries that no loader could use */
    bool has_directory;
    const uint8_t *generator;
    uint32_t generator_size;
    uint32_t hwcaps_count;
    uint32_t hwcaps[HWCAPS_MAX];
};

static inline uint32_t load32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof(value));
    return value;
}

/* Reads a cache; entries that no loader could use (a string out of bounds, without end or longer than any file name)
 * are left out. -EBADMSG, -ENOMEM; the records are the caller's to free. */
int ldcache_read(const uint8_t *bytes, size_t size, struct ldcache_view *view);

/* Writes `records` with the directory of `view`. Result as nvc_ldcache_merge's. */
int ldcache_write(const struct ldcache_view *view, const struct ldcache_record *records, size_t count,
                  uint8_t **out, size_t *out_size);

/* The loader's order of names: positive when `left` belongs before `right` in a cache. */
int ldcache_compare(const char *left, const char *right);
