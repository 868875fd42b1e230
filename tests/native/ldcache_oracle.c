#include "ldcache_oracle.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t u32(const uint8_t *bytes, uint64_t at)
{
    return (uint32_t)bytes[at] | (uint32_t)bytes[at + 1] << 8 | (uint32_t)bytes[at + 2] << 16 |
           (uint32_t)bytes[at + 3] << 24;
}

static uint64_t u64(const uint8_t *bytes, uint64_t at)
{
    return u32(bytes, at) | (uint64_t)u32(bytes, at + 4) << 32;
}

static bool digit(char c)
{
    return '0' <= c && c <= '9';
}

/* As the loader compiled by GCC behaves: numbers and their difference wrap. */
static int compare(const char *a, const char *b)
{
    for (; *a; a++, b++) {
        if (digit(*a) && digit(*b)) {
            uint32_t x = 0, y = 0;
            for (; digit(*a); a++)
                x = 10 * x + (uint32_t)(*a - '0');
            for (; digit(*b); b++)
                y = 10 * y + (uint32_t)(*b - '0');
            if (x != y)
                return (int)(x - y);
            a--, b--;
        } else if (digit(*a) || digit(*b)) {
            return digit(*a) ? 1 : -1;
        } else if (*a != *b) {
            return *a - *b;
        }
    }
    return -(*b);
}

static bool overflows(const char *name)
{
    for (; *name; name++)
        if (digit(*name) && strspn(name, "0123456789") >= 10)
            return true;
    return false;
}

static bool string_at(const uint8_t *bytes, size_t size, uint64_t at)
{
    return at < size && memchr(bytes + at, 0, size - at) != NULL;
}

/* Where the loader's table is. `strings` is what offsets count from; 0 entries and no `entry` when it has none. */
struct layout {
    uint64_t table, strings, count;
    int entry;
    bool combined;
};

static struct layout find_table(const uint8_t *bytes, size_t size)
{
    struct layout at = {.entry = 0};
    uint64_t fresh = 0;

    if (size >= 16 && memcmp(bytes, "ld.so-1.7.0", 11) == 0) {
        at = (struct layout){.table = 16, .count = u32(bytes, 12), .entry = 12};
        if ((size - 16) / 12 < at.count)
            return (struct layout){.entry = 0};
        at.strings = 16 + 12 * at.count;
        fresh = (at.strings + 7) / 8 * 8;
    }
    if (size < fresh + 48 || memcmp(bytes + fresh, "glibc-ld.so.cache1.1", 20) != 0)
        return at;
    if (bytes[fresh + 28] != 0 && (bytes[fresh + 28] & 3) != 2)
        return (struct layout){.entry = 0};
    at = (struct layout){fresh + 48, fresh, u32(bytes, fresh + 20), 24, fresh != 0};
    return (size - fresh - 48) / 24 < at.count ? (struct layout){.entry = 0} : at;
}

/* The name behind a hwcap index as the loader reads it, or NULL. */
static const char *hwcaps_name(const uint8_t *bytes, size_t size, uint64_t header, uint64_t hwcap)
{
    uint64_t at = u32(bytes, header + 32), section = 0, length = 0;

    if ((hwcap >> 32 & ~(uint64_t)1023) != (uint64_t)1 << 30 || at == 0 || at % 4 || at + 8 > size ||
        u32(bytes, at) != 0xeaa42174 || (size - at - 8) / 16 < u32(bytes, at + 4))
        return NULL;
    for (uint32_t i = 0; i < u32(bytes, at + 4); i++) {
        uint64_t each = at + 8 + 16 * (uint64_t)i;
        if ((uint64_t)u32(bytes, each + 8) + u32(bytes, each + 12) > size)
            return NULL;
        if (u32(bytes, each) == 1) {
            section = u32(bytes, each + 8);
            length = u32(bytes, each + 12);
        }
    }
    if (section % 4 || length % 4 || length / 4 > 1024 || (uint32_t)hwcap >= length / 4)
        return NULL;
    uint64_t name = u32(bytes, section + 4 * (hwcap & 0xffffffff));
    return string_at(bytes, size, name) ? (const char *)bytes + name : "";
}

struct found_cache oracle_read(const uint8_t *bytes, size_t size)
{
    struct layout at = find_table(bytes, size);
    struct found_cache cache = {.usable = at.entry != 0, .combined = at.combined, .sorted = true};

    cache.entries = calloc(at.count + 1, sizeof(*cache.entries));
    for (uint64_t i = 0; i < at.count; i++) {
        uint64_t entry = at.table + i * (uint64_t)at.entry,
                 behind = at.table + at.count * (uint64_t)at.entry;
        uint64_t name = at.strings + u32(bytes, entry + 4), path = at.strings + u32(bytes, entry + 8);
        struct found_entry *found = &cache.entries[cache.count];
        if (name < behind || path < behind || !string_at(bytes, size, name) || !string_at(bytes, size, path))
            continue;
        if (strlen((const char *)bytes + name) > 255)
            continue;
        *found = (struct found_entry){
            (const char *)bytes + name, (const char *)bytes + path, NULL, 0, u32(bytes, entry), 0};
        if (at.entry == 24) {
            found->os_version = u32(bytes, entry + 12);
            found->hwcap = u64(bytes, entry + 16);
            found->hwcaps = hwcaps_name(bytes, size, at.strings, found->hwcap);
        }
        cache.wraps |= overflows(found->name);
        cache.sorted &= cache.count == 0 || compare(found[-1].name, found->name) >= 0;
        cache.count++;
    }
    return cache;
}

static bool accepts(uint32_t flags, uint32_t wanted)
{
    return flags == wanted || (wanted == 0x0003 && flags == 1) || (wanted == 0x0903 && flags == 3);
}

const char *oracle_lookup(const uint8_t *bytes, size_t size, enum loader loader, const char *name,
                          uint32_t flags)
{
    struct layout at = find_table(bytes, size);
    const char *best = NULL, *best_hwcaps = NULL;

    int left = 0, right = (int)at.count - 1, middle = 0, order = 1;
#define NAME(i)                                                                                             \
    ((const char *)bytes + at.strings + u32(bytes, at.table + (uint64_t)(i) * (uint64_t)at.entry + 4))
    while (left <= right) {
        middle = (left + right) / 2;
        order = compare(name, NAME(middle));
        if (order == 0)
            break;
        if (order < 0)
            left = middle + 1;
        else
            right = middle - 1;
    }
    if (order != 0)
        return NULL;
    while (middle > 0 && compare(name, NAME(middle - 1)) == 0)
        middle--;
    for (; middle < (int)at.count && compare(name, NAME(middle)) == 0; middle++) {
        uint64_t entry = at.table + (uint64_t)middle * (uint64_t)at.entry;
        uint64_t hwcap = at.entry == 24 ? u64(bytes, entry + 16) : 0;
        const char *path = (const char *)bytes + at.strings + u32(bytes, entry + 8), *hwcaps = NULL;
        if (!accepts(u32(bytes, entry), flags))
            continue;
        if (loader == LOADER_HWCAPS && hwcap >> 62 == 1) {
            hwcaps = hwcaps_name(bytes, size, at.strings, hwcap);
            if (hwcaps == NULL || *hwcaps == '\0')
                continue;
            /* Of the directories the one whose name is last in the alphabet is the best: x86-64-v4. */
            if (best == NULL || strcmp(hwcaps, best_hwcaps) > 0) {
                best = path;
                best_hwcaps = hwcaps;
            }
            continue;
        }
        if (loader == LOADER_HWCAPS && best != NULL)
            break;
        if (hwcap != 0)
            continue;
        if (best == NULL || u32(bytes, entry) == flags)
            best = path;
        if (u32(bytes, entry) == flags)
            break;
    }
#undef NAME
    return best;
}

#define REQUIRE(condition, ...)                                                                             \
    do {                                                                                                    \
        if (!(condition)) {                                                                                 \
            fprintf(stderr, "ldcache: " __VA_ARGS__);                                                       \
            fprintf(stderr, " (%s)\n", #condition);                                                         \
            abort();                                                                                        \
        }                                                                                                   \
    } while (0)

static int by_content(const void *left, const void *right)
{
    const struct found_entry *a = left, *b = right;
    int order = strcmp(a->name, b->name);

    order = order ? order : strcmp(a->path, b->path);
    order = order ? order : (a->flags > b->flags) - (a->flags < b->flags);
    order = order ? order : (a->os_version > b->os_version) - (a->os_version < b->os_version);
    return order ? order : (a->hwcap > b->hwcap) - (a->hwcap < b->hwcap);
}

/* Leaves out what was added; what remains must be the same before and after. */
static void reduce(struct found_cache *cache, const struct nvc_ldcache_entry *add, size_t count)
{
    size_t kept = 0;

    for (size_t i = 0; i < cache->count; i++) {
        struct found_entry *entry = &cache->entries[i];
        bool gone = false;
        for (size_t j = 0; j < count; j++)
            gone |= entry->flags == add[j].arch_flags && strcmp(entry->name, add[j].soname) == 0 &&
                    strcmp(entry->path, add[j].path) == 0;
        if (!gone)
            cache->entries[kept++] = *entry;
    }
    cache->count = kept;
}

static void check_kept(struct found_cache *before, struct found_cache *after)
{
    REQUIRE(before->count == after->count, "%zu entries became %zu", before->count, after->count);
    if (!before->sorted) {
        qsort(before->entries, before->count, sizeof(struct found_entry), by_content);
        qsort(after->entries, after->count, sizeof(struct found_entry), by_content);
    }
    for (size_t i = 0; i < before->count; i++) {
        const struct found_entry *a = &before->entries[i], *b = &after->entries[i];
        REQUIRE(by_content(a, b) == 0, "%s => %s became %s => %s", a->name, a->path, b->name, b->path);
        /* A name that the loader could not use is empty afterwards. */
        REQUIRE(a->hwcaps == NULL ? b->hwcaps == NULL
                                  : b->hwcaps && (!*b->hwcaps || strcmp(a->hwcaps, b->hwcaps) == 0),
                "hwcaps of %s changed", a->path);
    }
}

/* Every table of `bytes` is whole: each entry's strings are inside it. */
static void check_whole(const uint8_t *bytes, size_t size)
{
    struct layout at = find_table(bytes, size);
    uint64_t behind = at.table + 24 * at.count, strings_end = behind + u32(bytes, at.strings + 24);

    REQUIRE(at.entry == 24 && strings_end <= size, "no new part");
    for (uint64_t i = 0; i < 2 * at.count; i++) {
        uint64_t string = at.strings + u32(bytes, at.table + i / 2 * 24 + 4 + i % 2 * 4);
        REQUIRE(string >= behind && string_at(bytes, strings_end, string), "a string outside the table");
    }
}

static bool all_possible(const struct nvc_ldcache_entry *add, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!*add[i].soname || strlen(add[i].soname) > 255 || *add[i].path != '/' ||
            strlen(add[i].path) > 4095)
            return false;
    return true;
}

int oracle_merge(const uint8_t *old, size_t size, const struct nvc_ldcache_entry *add, size_t count)
{
    uint8_t *merged, *again;
    size_t merged_size, again_size, room = 2 * size + 256;
    struct found_cache before = oracle_read(old, size), after;
    int result = nvc_ldcache_merge(old, size, add, count, &merged, &merged_size);

    if (result != 0) {
        REQUIRE(merged == NULL, "an error and a cache");
        if (result == -EINVAL)
            REQUIRE(!all_possible(add, count), "refused good additions");
        else
            REQUIRE(size > 0 && (!before.usable || before.wraps ||
                                 before.count + count > NVC_LDCACHE_ENTRIES_MAX || room > NVC_LDCACHE_MAX),
                    "refused with %d", result);
        free(before.entries);
        return result;
    }
    REQUIRE(before.usable || size == 0, "accepted what no loader does");
    check_whole(merged, merged_size);
    after = oracle_read(merged, merged_size);
    REQUIRE(after.usable && !after.combined, "another flavour");
    REQUIRE(after.sorted || after.wraps, "not sorted");
    for (size_t i = 0; i < count; i++) {
        const char *first = NULL;
        for (size_t j = count; j-- > 0;)
            if (compare(add[j].soname, add[i].soname) == 0 && add[j].arch_flags == add[i].arch_flags)
                first = add[j].path;
        for (int loader = LOADER_LEGACY; loader < LOADER_COUNT; loader++) {
            const char *path = oracle_lookup(merged, merged_size, loader, add[i].soname, add[i].arch_flags);
            REQUIRE(path && strcmp(path, first) == 0, "%s leads to %s", add[i].soname,
                    path ? path : "nothing");
        }
        room += strlen(add[i].soname) + strlen(add[i].path) + 2 + 48;
    }
    REQUIRE(merged_size <= room, "%zu bytes became %zu", size, merged_size);
    result = nvc_ldcache_merge(merged, merged_size, add, count, &again, &again_size);
    REQUIRE(after.wraps ||
                (result == 0 && again_size == merged_size && memcmp(again, merged, again_size) == 0),
            "another merge changes it");
    reduce(&before, add, count);
    reduce(&after, add, count);
    check_kept(&before, &after);
    free(again);
    free(merged);
    free(before.entries);
    free(after.entries);
    return 0;
}
