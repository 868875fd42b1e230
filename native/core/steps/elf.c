/* The few facts of ELF files that matter here, through bounded reads. The files are an image's, or the driver's.
 * Little-endian files of 32 and 64 bits; big-endian ones cannot be this machine's. */
#include "_steps.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    HEAD = 4096,
    HEADERS_MAX = 64,
    DYNAMIC_MAX = 64 << 10,
    NOTES_MAX = 64 << 10,
    SECTIONS_MAX = 1024,
    PT_LOAD = 1,
    PT_DYNAMIC = 2,
    PT_NOTE = 4,
    DT_STRTAB = 5,
    DT_STRSZ = 10,
    DT_SONAME = 14,
};
#define OFFSET_MAX ((uint64_t)1 << 62) /* beyond any off_t */
#define FORWARD ".note.cuda.fwd_compatibility"

struct range {
    uint64_t address, offset, size;
};

static uint64_t load(const uint8_t *at, int bytes)
{
    uint64_t value = 0;

    for (int i = bytes; i-- > 0;)
        value = value << 8 | at[i];
    return value;
}

/* Up to `size` bytes at `offset`: fewer at the end of the file. -errno where they cannot be read. */
static ssize_t read_at(int fd, void *bytes, size_t size, uint64_t offset)
{
    ssize_t got;

    if (offset >= OFFSET_MAX || size == 0)
        return 0;
    do
        got = pread(fd, bytes, size, (off_t)offset);
    while (got < 0 && errno == EINTR);
    return got < 0 ? -errno : got;
}

struct note {
    const uint8_t *owner, *data;
    uint64_t owner_size, size;
    uint32_t type;
};

/* The note at `*at`, which moves behind it; false behind the last that fits. */
static bool next_note(const uint8_t *notes, uint64_t length, uint64_t *at, struct note *note)
{
    if (*at + 12 > length)
        return false;
    const uint8_t *head = notes + *at;
    uint64_t owner_at = *at + 12, data_at;

    note->owner_size = load(head, 4);
    note->size = load(head + 4, 4);
    note->type = (uint32_t)load(head + 8, 4);
    data_at = owner_at + (note->owner_size + 3) / 4 * 4;
    *at = data_at + (note->size + 3) / 4 * 4;
    if (data_at + note->size > length)
        return false;
    note->owner = notes + owner_at;
    note->data = notes + data_at;
    while (note->owner_size > 0 && note->owner[note->owner_size - 1] == '\0')
        note->owner_size--;
    return true;
}

static bool is_by(const struct note *note, const char *owner)
{
    return note->owner_size == strlen(owner) && memcmp(note->owner, owner, note->owner_size) == 0;
}

/* What notes say of the kernel that the file is for (.note.ABI-tag), and of a shim (native/vgpu/process/note.c). */
static void take_notes(const uint8_t *notes, uint64_t length, struct nvc_elf *elf)
{
    struct note note;

    for (uint64_t at = 0; next_note(notes, length, &at, &note);) {
        if (note.type == 1 && is_by(&note, "GNU") && note.size >= 16 && load(note.data, 4) == 0)
            for (int i = 0; i < 3; i++)
                elf->linux_abi[i] = (uint32_t)load(note.data + 4 + 4 * i, 4);
        else if (note.type == 1 && is_by(&note, "NVC") && note.size >= 8)
            elf->layouts = (uint32_t)load(note.data, 4);
    }
}

static int read_notes(int fd, const uint8_t *head, ssize_t known, const struct range *range,
                      struct nvc_elf *elf)
{
    if (range->size > NOTES_MAX)
        return 0;
    if (range->offset < HEAD && range->offset + range->size <= (uint64_t)known) {
        take_notes(head + range->offset, range->size, elf);
        return 0;
    }
    uint8_t *notes = malloc(range->size + 1);
    if (notes == NULL)
        return -ENOMEM;
    ssize_t got = read_at(fd, notes, range->size, range->offset);
    if (got > 0)
        take_notes(notes, (uint64_t)got, elf);
    free(notes);
    return got < 0 ? (int)got : 0;
}

/* The SONAME. Addresses are mapped to offsets through the loaded segments, as the loader does. */
static int read_soname(int fd, bool wide, const struct range *dynamic, const struct range *loads, int count,
                       struct nvc_elf *elf)
{
    uint64_t strings = 0, size = 0, soname = 0, base = 0;
    bool has_strings = false, has_size = false, has_soname = false, found = false;
    int word = wide ? 8 : 4, result = 0;

    if (dynamic->size > DYNAMIC_MAX)
        return -EBADMSG;
    uint8_t *table = malloc(dynamic->size + 1);
    if (table == NULL)
        return -ENOMEM;
    ssize_t got = read_at(fd, table, dynamic->size, dynamic->offset);
    for (ssize_t at = 0; at + 2 * word <= got; at += 2 * word) {
        uint64_t tag = load(table + at, word), value = load(table + at + word, word);
        if (tag == 0)
            break;
        if (tag == DT_STRTAB)
            strings = value, has_strings = true;
        else if (tag == DT_STRSZ)
            size = value, has_size = true;
        else if (tag == DT_SONAME)
            soname = value, has_soname = true;
    }
    free(table);
    if (got < 0 || !has_soname)
        return got < 0 ? (int)got : 0;
    for (int i = 0; i < count && !found; i++) {
        found = has_strings && strings >= loads[i].address && strings - loads[i].address < loads[i].size;
        if (found && __builtin_add_overflow(strings - loads[i].address, loads[i].offset, &base))
            return -EBADMSG;
    }
    if (!found || !has_size || soname >= size || __builtin_add_overflow(base, soname, &base))
        return -EBADMSG;
    got = read_at(fd, elf->soname, size - soname < sizeof(elf->soname) ? size - soname : sizeof(elf->soname),
                  base);
    if (got < 0 || memchr(elf->soname, '\0', (size_t)got) == NULL)
        result = got < 0 ? (int)got : -EBADMSG;
    return result;
}

int nvc_elf_read(int fd, struct nvc_elf *elf)
{
    uint8_t head[HEAD], table[HEADERS_MAX * 56];
    struct range loads[HEADERS_MAX], dynamic = {0};
    bool is_dynamic = false;
    int load_count = 0, result = 0;
    ssize_t got = read_at(fd, head, sizeof(head), 0), known = got;

    *elf = (struct nvc_elf){.bits = 0};
    if (got < 0)
        return (int)got;
    if (got < 52 || memcmp(head, "\177ELF", 4) != 0)
        return -EBADMSG;
    bool wide = head[4] == 2;
    if ((head[4] != 1 && !wide) || head[5] != 1 || head[6] != 1 || (wide && got < 64))
        return -EBADMSG;
    uint64_t start = wide ? load(head + 32, 8) : load(head + 28, 4);
    const uint8_t *sizes = head + (wide ? 54 : 42);
    unsigned size = (unsigned)load(sizes, 2), count = (unsigned)load(sizes + 2, 2), segment = wide ? 56 : 32;
    elf->bits = wide ? 64 : 32;
    elf->machine = (uint32_t)load(head + 18, 2);
    elf->sections = wide ? load(head + 40, 8) : load(head + 32, 4);
    elf->section_size = (uint32_t)load(sizes + 4, 2);
    elf->section_count = (uint32_t)load(sizes + 6, 2);
    elf->section_names = (uint32_t)load(sizes + 8, 2);
    if (count > HEADERS_MAX || (count && size != segment))
        return -EBADMSG;
    if (start < OFFSET_MAX && start + count * segment <= (uint64_t)got) {
        memcpy(table, head + start, count * segment);
    } else {
        got = read_at(fd, table, count * segment, start);
        if (got != (ssize_t)(count * segment))
            return got < 0 ? (int)got : -EBADMSG;
    }
    for (unsigned i = 0; i < count && result == 0; i++) {
        const uint8_t *at = table + i * segment;
        struct range range = wide ? (struct range){load(at + 16, 8), load(at + 8, 8), load(at + 32, 8)}
                                  : (struct range){load(at + 8, 4), load(at + 4, 4), load(at + 16, 4)};
        if (load(at, 4) == PT_LOAD)
            loads[load_count++] = range;
        else if (load(at, 4) == PT_DYNAMIC)
            dynamic = range, is_dynamic = true;
        else if (load(at, 4) == PT_NOTE)
            result = read_notes(fd, head, known, &range, elf);
    }
    if (result < 0)
        return result;
    return is_dynamic ? read_soname(fd, wide, &dynamic, loads, load_count, elf) : 0;
}

const char *elf_arch(const struct nvc_elf *elf)
{
    static const struct {
        unsigned machine;
        int bits;
        const char *name;
    } arches[] = {{62, 64, "x86_64"}, {3, 32, "i386"}, {183, 64, "aarch64"}, {40, 32, "arm"}};

    for (size_t i = 0; i < sizeof(arches) / sizeof(arches[0]); i++)
        if (arches[i].machine == elf->machine && arches[i].bits == elf->bits)
            return arches[i].name;
    return NULL;
}

/* The content of the section of forward compatibility, from malloc; NULL with 0 where there is none. */
static int read_section(int fd, const struct nvc_elf *elf, uint8_t **content, size_t *size)
{
    bool wide = elf->bits == 64;
    unsigned entry = wide ? 64 : 40, offset_at = wide ? 24 : 16, word = wide ? 8 : 4;
    size_t whole = (size_t)elf->section_count * entry;
    int result = 0;

    *content = NULL;
    if (!elf->sections || elf->section_size != entry || elf->section_count > SECTIONS_MAX ||
        elf->section_names >= elf->section_count)
        return 0;
    uint8_t *table = malloc(whole), *names = malloc(NOTES_MAX), *found = malloc(NOTES_MAX);
    ssize_t got = table && names && found ? read_at(fd, table, whole, elf->sections) : -ENOMEM;
    if (got == (ssize_t)whole) {
        const uint8_t *at = table + elf->section_names * entry + offset_at;
        uint64_t length = load(at + word, (int)word);
        got = read_at(fd, names, length < NOTES_MAX ? length : NOTES_MAX, load(at, (int)word));
        for (unsigned i = 0; i < elf->section_count && got > 0; i++) {
            uint64_t name = load(table + i * entry, 4);
            if (name + sizeof(FORWARD) > (uint64_t)got ||
                memcmp(names + name, FORWARD, sizeof(FORWARD)) != 0)
                continue;
            at = table + i * entry + offset_at;
            length = load(at + word, (int)word);
            got = length > NOTES_MAX ? 0 : read_at(fd, found, length, load(at, (int)word));
            if (got >= 0 && length <= NOTES_MAX) {
                *content = found;
                *size = (size_t)got;
            }
            break;
        }
    }
    if (got < 0)
        result = (int)got;
    free(table);
    free(names);
    if (*content == NULL)
        free(found);
    return result;
}

int elf_forward_note(int fd, const struct nvc_elf *elf, char **note, size_t *size)
{
    uint8_t *content;
    size_t length = 0;
    struct note found;
    int result = read_section(fd, elf, &content, &length);

    *note = NULL;
    for (uint64_t at = 0; content != NULL && next_note(content, length, &at, &found);) {
        if (!is_by(&found, "NVIDIA Corporation"))
            continue;
        while (found.size > 0 && found.data[found.size - 1] == '\0')
            found.size--;
        memmove(content, found.data, found.size);
        *note = (char *)content;
        *size = found.size;
        return 0;
    }
    free(content);
    return result;
}
