/* Writing a loader cache. The old strings are copied as they lie, from the first to the last that is used: ldconfig lets
 * strings share their ends, a hostile image lets them overlap, and so the copy is never larger than the original. */
#include "_ldcache.h"

#include <errno.h>
#include <stdlib.h>

struct output {
    uint8_t *bytes;
    size_t size;
};

/* The old strings that are used, by offsets in the old file; and where they and ours come to stand. */
struct strings {
    size_t low, high; /* the first and the last one begin there */
    size_t kept;      /* bytes */
    size_t at, ours;
};

static bool is_kept(const struct ldcache_view *view, const char *text)
{
    return (uintptr_t)text - (uintptr_t)view->bytes < view->size;
}

static void widen(struct strings *strings, size_t offset)
{
    strings->low = offset < strings->low ? offset : strings->low;
    strings->high = offset > strings->high ? offset : strings->high;
}

static void append(struct output *out, const void *bytes, size_t size)
{
    memcpy(out->bytes + out->size, bytes, size);
    out->size += size;
}

static void append32(struct output *out, size_t value)
{
    append(out, &(uint32_t){(uint32_t)value}, sizeof(uint32_t));
}

/* The offset of a string: moved with all old ones, or behind those of ours that came before. */
static void append_place(const struct ldcache_view *view, struct strings *strings, const char *text,
                         struct output *out)
{
    if (is_kept(view, text)) {
        append32(out, (size_t)((const uint8_t *)text - view->bytes) - strings->low + strings->at);
    } else {
        append32(out, strings->ours);
        strings->ours += strlen(text) + 1;
    }
}

static void write_table(const struct ldcache_view *view, const struct ldcache_record *records, size_t count,
                        size_t strings_size, struct strings *strings, struct output *out)
{
    const uint8_t order[4] = {ORDER_NATIVE};

    append(out, NEW_MAGIC, sizeof(NEW_MAGIC) - 1);
    append32(out, count);
    append32(out, strings_size);
    append(out, order, sizeof(order));
    append(out, (uint32_t[4]){0}, 16); /* where the directory is, and unused */
    for (size_t i = 0; i < count; i++) {
        append32(out, records[i].flags);
        append_place(view, strings, records[i].name, out);
        append_place(view, strings, records[i].path, out);
        append32(out, records[i].os_version);
        append(out, &records[i].hwcap, sizeof(records[i].hwcap));
    }
}

/* The directory and its sections, as ldconfig orders them: hwcaps names, generator. An unusable name becomes the empty
 * one, which is no directory's: the end of the last string. */
static void write_directory(const struct ldcache_view *view, uint32_t names, const struct strings *strings,
                            struct output *out)
{
    uint32_t sections = (view->generator_size > 0 ? 1u : 0u) + (names > 0 ? 1u : 0u);
    size_t empty = out->size - 1;

    if (!view->has_directory || sections == 0)
        return;
    while (out->size % 4 != 0)
        append(out, "", 1);
    memcpy(out->bytes + NEW_DIRECTORY_AT, &(uint32_t){(uint32_t)out->size}, sizeof(uint32_t));
    append32(out, EXTENSION_MAGIC);
    append32(out, sections);
    size_t names_at = out->size + sections * DIRECTORY_ENTRY;
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
        append32(out, view->hwcaps[i] ? view->hwcaps[i] - strings->low + strings->at : empty);
    if (view->generator_size > 0)
        append(out, view->generator, view->generator_size);
}

int ldcache_write(const struct ldcache_view *view, const struct ldcache_record *records, size_t count,
                  uint8_t **merged, size_t *merged_size)
{
    struct strings strings = {.low = view->size, .at = NEW_HEADER + count * NEW_ENTRY};
    struct output out = {.size = 0};
    size_t ours = 0;
    uint32_t names = 0; /* of hwcaps directories; none when no entry can refer to one */

    for (size_t i = 0; i < count; i++) {
        const char *texts[] = {records[i].name, records[i].path};
        for (size_t j = 0; j < 2; j++)
            if (is_kept(view, texts[j]))
                widen(&strings, (size_t)((const uint8_t *)texts[j] - view->bytes));
            else
                ours += strlen(texts[j]) + 1;
        names = records[i].added ? names : view->hwcaps_count;
    }
    for (uint32_t i = 0; i < names; i++)
        if (view->hwcaps[i] != 0)
            widen(&strings, view->hwcaps[i]);
    if (strings.low < view->size) /* of two strings the later one does not end first */
        strings.kept = strings.high + strlen((const char *)view->bytes + strings.high) + 1 - strings.low;
    strings.ours = strings.at + strings.kept;
    out.bytes = malloc(strings.ours + ours + 4 + DIRECTORY_HEADER + 2 * DIRECTORY_ENTRY + 4 * HWCAPS_MAX +
                       GENERATOR_MAX);
    if (out.bytes == NULL)
        return -ENOMEM;
    write_table(view, records, count, strings.kept + ours, &strings, &out);
    if (strings.kept)
        append(&out, view->bytes + strings.low, strings.kept);
    for (size_t i = 0; i < count; i++)
        if (!is_kept(view, records[i].name)) {
            append(&out, records[i].name, strlen(records[i].name) + 1);
            append(&out, records[i].path, strlen(records[i].path) + 1);
        }
    write_directory(view, names, &strings, &out);
    /* What is written must be readable again. */
    if (count > NVC_LDCACHE_ENTRIES_MAX || out.size > NVC_LDCACHE_MAX) {
        free(out.bytes);
        return -EBADMSG;
    }
    *merged = out.bytes;
    *merged_size = out.size;
    return 0;
}
