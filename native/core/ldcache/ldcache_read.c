/* Reading a loader cache of which nothing is believed: it comes out of an image. */
#include "_ldcache.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

struct table {
    uint64_t base;    /* what the strings' offsets count from */
    uint64_t entries; /* the first entry */
    uint64_t end;     /* behind the last one */
    uint32_t count;
    uint32_t entry_size;
};

static bool new_part_at(const uint8_t *bytes, size_t size, uint64_t at)
{
    return at + NEW_HEADER <= size && memcmp(bytes + at, NEW_MAGIC, sizeof(NEW_MAGIC) - 1) == 0;
}

/* Finds the table that the loader would search, as the loader finds it. */
static int locate(const uint8_t *bytes, size_t size, struct table *table)
{
    uint64_t at = 0;
    bool is_old = false;

    if (!new_part_at(bytes, size, 0)) {
        if (size < OLD_HEADER || memcmp(bytes, OLD_MAGIC, sizeof(OLD_MAGIC) - 1) != 0)
            return -EBADMSG;
        *table = (struct table){.entries = OLD_HEADER, .entry_size = OLD_ENTRY, .count = load32(bytes + 12)};
        table->base = table->end = OLD_HEADER + (uint64_t)table->count * OLD_ENTRY;
        at = (table->end + 7) & ~(uint64_t)7;
        is_old = !new_part_at(bytes, size, at);
    }
    if (!is_old) {
        uint8_t order = bytes[at + NEW_ORDER_AT];
        if (order != 0 && (order & ORDER_MASK) != ORDER_NATIVE) /* 0: written before glibc 2.33 */
            return -EBADMSG;
        *table = (struct table){.base = at, .entries = at + NEW_HEADER, .entry_size = NEW_ENTRY};
        table->count = load32(bytes + at + NEW_COUNT_AT);
        table->end = table->entries + (uint64_t)table->count * NEW_ENTRY;
    }
    return table->end <= size && table->count <= NVC_LDCACHE_ENTRIES_MAX ? 0 : -EBADMSG;
}

/* The directory, with the loader's strictness: one section out of bounds voids it all, of two sections with one tag
 * the last counts, unknown tags do not. */
static void read_directory(const uint8_t *bytes, size_t size, const struct table *table,
                           uint64_t strings_end, struct ldcache_view *view)
{
    uint64_t at = load32(bytes + table->base + NEW_DIRECTORY_AT), names = 0, names_size = 0;

    if (at == 0 || at % 4 != 0 || at + DIRECTORY_HEADER > size || load32(bytes + at) != EXTENSION_MAGIC)
        return;
    uint64_t sections = load32(bytes + at + 4);
    at += DIRECTORY_HEADER;
    if (at + sections * DIRECTORY_ENTRY > size)
        return;
    for (uint64_t i = 0; i < sections; i++, at += DIRECTORY_ENTRY) {
        uint32_t tag = load32(bytes + at), length = load32(bytes + at + 12);
        uint64_t offset = load32(bytes + at + 8);
        if (offset + length > size)
            return;
        if (tag == TAG_GENERATOR) {
            view->generator = bytes + offset;
            view->generator_size = length;
        } else if (tag == TAG_HWCAPS) {
            names = offset;
            names_size = length;
        }
    }
    view->has_directory = true;
    if (view->generator_size > GENERATOR_MAX)
        view->generator_size = 0;
    if (names % 4 != 0 || names_size % 4 != 0 || names_size / 4 > HWCAPS_MAX)
        return;
    view->hwcaps_count = (uint32_t)(names_size / 4);
    for (uint32_t i = 0; i < view->hwcaps_count; i++) {
        uint32_t name = load32(bytes + names + 4 * (uint64_t)i);
        view->hwcaps[i] = name >= table->end && name < strings_end ? name : 0;
    }
}

int ldcache_read(const uint8_t *bytes, size_t size, struct ldcache_view *view)
{
    struct table table;

    *view = (struct ldcache_view){.bytes = bytes, .size = size};
    if (size > NVC_LDCACHE_MAX || locate(bytes, size, &table) < 0)
        return -EBADMSG;
    view->records = malloc(table.count * sizeof(*view->records) + 1);
    if (view->records == NULL)
        return -ENOMEM;
    /* Behind the last NUL no string ends. */
    uint64_t strings_end = size;
    while (strings_end > table.end && bytes[strings_end - 1] != 0)
        strings_end--;
    for (uint32_t i = 0; i < table.count; i++) {
        const uint8_t *entry = bytes + table.entries + (uint64_t)i * table.entry_size;
        uint64_t name = table.base + load32(entry + 4), path = table.base + load32(entry + 8);
        struct ldcache_record *record = &view->records[view->count];
        if (name < table.end || name >= strings_end || path < table.end || path >= strings_end)
            continue;
        *record = (struct ldcache_record){
            .name = (const char *)bytes + name, .path = (const char *)bytes + path, .flags = load32(entry)};
        if (strnlen(record->name, NAME_BYTES_MAX + 1) > NAME_BYTES_MAX)
            continue;
        if (table.entry_size == NEW_ENTRY) {
            record->os_version = load32(entry + 12);
            memcpy(&record->hwcap, entry + 16, sizeof(record->hwcap));
        }
        view->count++;
    }
    view->left_out = table.count - view->count;
    if (table.entry_size == NEW_ENTRY)
        read_directory(bytes, size, &table, strings_end, view);
    return 0;
}

int nvc_ldcache_list(const uint8_t *bytes, size_t size, uint8_t **list, size_t *list_size)
{
    struct ldcache_view view;
    size_t room = 8 * size + 65536; /* strings may overlap: many entries could name one that is long */
    FILE *out = NULL;
    int result = ldcache_read(bytes, size, &view);

    if (result == 0 && view.left_out > 0)
        result = -EBADMSG;
    if (result == 0 && !(out = open_memstream((char **)list, list_size)))
        result = -ENOMEM;
    for (size_t i = 0; result == 0 && i < view.count; i++) {
        const struct ldcache_record *record = &view.records[i];
        size_t length = strlen(record->name) + strlen(record->path);
        if (length > room)
            result = -EBADMSG;
        else if (fprintf(out, "%x%c%s%c%s%c", record->flags, 0, record->name, 0, record->path, 0) < 0)
            result = -ENOMEM;
        room -= length;
    }
    free(view.records);
    if (out && fclose(out) != 0 && result == 0)
        result = -ENOMEM;
    if (out && result < 0)
        free(*list);
    return result;
}
