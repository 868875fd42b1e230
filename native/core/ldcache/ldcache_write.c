/* Writing a loader cache. The old strings that are still used are copied run by run, a run being the bytes up to one
 * NUL: ldconfig lets strings share their ends, a hostile image lets them overlap, and so the copy is never larger than
 * the original. */
#include "_ldcache.h"

#include <errno.h>
#include <stdlib.h>

/* A used string: its offset in the old file in the upper half, the number of the field that uses it in the lower. */
typedef uint64_t use;

struct output {
    uint8_t *bytes;
    size_t size;
    size_t base;      /* of the new part */
    size_t old_count; /* entries of the old part, always even, so that the new one is aligned */
    uint32_t names;   /* of hwcaps directories; none when no entry can refer to one */
    uint32_t hwcaps[HWCAPS_MAX];
};

/* A place for the offset of one string, by number: names and paths in turn, then the hwcaps names. */
static uint32_t *field(struct ldcache_record *records, size_t count, struct output *out, uint32_t number)
{
    if (number >= 2 * count)
        return &out->hwcaps[number - 2 * count];
    return number % 2 ? &records[number / 2].path_at : &records[number / 2].name_at;
}

/* Sorts by offset in three rounds, which are as many bits as an offset can have. The result is in `spare`. */
static void sort_uses(use *uses, use *spare, size_t count)
{
    enum { BITS = 9, ROUNDS = 3, BUCKETS = 1 << BITS };
    _Static_assert(NVC_LDCACHE_MAX <= 1 << (BITS * ROUNDS), "an offset has more bits than are sorted by");

    for (int round = 0; round < ROUNDS; round++) {
        size_t starts[BUCKETS + 1] = {0};
        int shift = 32 + round * BITS;
        for (size_t i = 0; i < count; i++)
            starts[((uses[i] >> shift) & (BUCKETS - 1)) + 1]++;
        for (int bucket = 0; bucket < BUCKETS; bucket++)
            starts[bucket + 1] += starts[bucket];
        for (size_t i = 0; i < count; i++)
            spare[starts[(uses[i] >> shift) & (BUCKETS - 1)]++] = uses[i];
        use *sorted = spare;
        spare = uses;
        uses = sorted;
    }
}

static void append(struct output *out, const void *bytes, size_t size)
{
    memcpy(out->bytes + out->size, bytes, size);
    out->size += size;
}

static void append32(struct output *out, uint32_t value)
{
    append(out, &value, sizeof(value));
}

/* Copies every run once, in the old order, and notes where each string came to stand. */
static void copy_runs(const struct ldcache_view *view, const use *uses, size_t used,
                      struct ldcache_record *records, size_t count, struct output *out)
{
    uint64_t run = 0, run_end = 0;
    size_t run_at = 0;

    for (size_t i = 0; i < used; i++) {
        uint64_t offset = uses[i] >> 32;
        if (offset >= run_end) {
            run = offset;
            run_at = out->size - out->base;
            run_end = run + strlen((const char *)view->bytes + run) + 1;
            append(out, view->bytes + run, run_end - run);
        }
        *field(records, count, out, (uint32_t)uses[i]) = (uint32_t)(run_at + (offset - run));
    }
}

/* The strings: the old ones, then ours. */
static int write_strings(const struct ldcache_view *view, struct ldcache_record *records, size_t count,
                         struct output *out)
{
    size_t used = 0, most = 2 * count + out->names, start = out->size;
    use *uses = malloc(2 * most * sizeof(*uses) + 1);

    if (uses == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++) {
        if (records[i].added)
            continue;
        uses[used++] = (use)((const uint8_t *)records[i].name - view->bytes) << 32 | 2 * i;
        uses[used++] = (use)((const uint8_t *)records[i].path - view->bytes) << 32 | (2 * i + 1);
    }
    for (uint32_t i = 0; i < out->names; i++)
        if (view->hwcaps[i] != 0)
            uses[used++] = (use)view->hwcaps[i] << 32 | (2 * count + i);
    sort_uses(uses, uses + most, used);
    copy_runs(view, uses + most, used, records, count, out);
    free(uses);
    /* An unusable name becomes the empty one, which is no directory's: the end of the first string. */
    for (uint32_t i = 0; i < out->names; i++)
        if (view->hwcaps[i] == 0)
            out->hwcaps[i] = (uint32_t)(start - out->base + strlen((char *)out->bytes + start));
    for (size_t i = 0; i < count; i++) {
        if (!records[i].added)
            continue;
        records[i].name_at = (uint32_t)(out->size - out->base);
        append(out, records[i].name, strlen(records[i].name) + 1);
        records[i].path_at = (uint32_t)(out->size - out->base);
        append(out, records[i].path, strlen(records[i].path) + 1);
    }
    return 0;
}

/* Headers and entries, once the strings' places are known. */
static void write_tables(const struct ldcache_record *records, size_t count, bool has_old_part,
                         size_t strings_size, struct output *out)
{
    size_t written = 0;

    out->size = 0;
    if (has_old_part) {
        append(out, OLD_MAGIC, sizeof(OLD_MAGIC));
        append32(out, (uint32_t)out->old_count);
        for (size_t i = 0; i < count; i++) {
            if (records[i].hwcap != 0) /* loaders of the old part know of none */
                continue;
            append32(out, records[i].flags);
            append32(out, records[i].name_at);
            append32(out, records[i].path_at);
            written++;
        }
        if (written < out->old_count)
            append(out, out->bytes + out->size - OLD_ENTRY, OLD_ENTRY);
    }
    append(out, NEW_MAGIC, sizeof(NEW_MAGIC) - 1);
    append32(out, (uint32_t)count);
    append32(out, (uint32_t)strings_size);
    for (size_t i = 0; i < 5; i++)
        append32(out, 0);
    out->bytes[out->base + NEW_ORDER_AT] = ORDER_NATIVE;
    for (size_t i = 0; i < count; i++) {
        append32(out, records[i].flags);
        append32(out, records[i].name_at);
        append32(out, records[i].path_at);
        append32(out, records[i].os_version);
        append(out, &records[i].hwcap, sizeof(records[i].hwcap));
    }
}

/* The directory and its sections, as ldconfig orders them: hwcaps names, generator. */
static void write_directory(const struct ldcache_view *view, struct output *out)
{
    uint32_t names = out->names, sections = (view->generator_size > 0 ? 1u : 0u) + (names > 0 ? 1u : 0u);

    if (!view->has_directory || sections == 0)
        return;
    while (out->size % 4 != 0)
        append(out, "", 1);
    store32(out->bytes + out->base + NEW_DIRECTORY_AT, (uint32_t)out->size);
    append32(out, EXTENSION_MAGIC);
    append32(out, sections);
    uint32_t names_at = (uint32_t)out->size + sections * DIRECTORY_ENTRY;
    if (view->generator_size > 0) {
        append32(out, TAG_GENERATOR);
        append32(out, 0);
        append32(out, names_at + 4 * names);
        append32(out, view->generator_size);
    }
    if (names > 0) {
        append32(out, TAG_HWCAPS);
        append32(out, 0);
        append32(out, names_at);
        append32(out, 4 * names);
    }
    for (uint32_t i = 0; i < names; i++)
        append32(out, (uint32_t)out->base + out->hwcaps[i]);
    if (view->generator_size > 0)
        append(out, view->generator, view->generator_size);
}

int ldcache_write(const struct ldcache_view *view, struct ldcache_record *records, size_t count,
                  uint8_t **merged, size_t *merged_size)
{
    struct output out = {.old_count = 0};
    size_t room = view->size, strings;

    for (size_t i = 0; i < count; i++) {
        out.old_count += view->has_old_part && records[i].hwcap == 0;
        if (records[i].added)
            room += strlen(records[i].name) + strlen(records[i].path) + 2;
        else
            out.names = view->hwcaps_count;
    }
    out.old_count += out.old_count % 2;
    if (view->has_old_part)
        out.base = OLD_HEADER + out.old_count * OLD_ENTRY;
    strings = out.base + NEW_HEADER + count * NEW_ENTRY;
    room += strings + 4 + DIRECTORY_HEADER + 2 * DIRECTORY_ENTRY + 4 * HWCAPS_MAX + GENERATOR_MAX;
    out.bytes = malloc(room);
    if (out.bytes == NULL)
        return -ENOMEM;
    out.size = strings;
    if (write_strings(view, records, count, &out) < 0) {
        free(out.bytes);
        return -ENOMEM;
    }
    size_t strings_end = out.size;
    write_tables(records, count, view->has_old_part, strings_end - strings, &out);
    out.size = strings_end;
    write_directory(view, &out);
    /* What is written must be readable again. */
    if (count > NVC_LDCACHE_ENTRIES_MAX || out.size > NVC_LDCACHE_MAX) {
        free(out.bytes);
        return -EBADMSG;
    }
    *merged = out.bytes;
    *merged_size = out.size;
    return 0;
}
