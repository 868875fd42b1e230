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
    DT_STRTAB = 5,
    DT_STRSZ = 10,
    DT_SONAME = 14,
};
#define OFFSET_MAX ((uint64_t)1 << 62) /* beyond any off_t */
#define FORWARD ".note.cuda.fwd_compatibility"
#define OWNER "NVIDIA Corporation"

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

/* The SONAME. Addresses are mapped to offsets through the loaded segments, as the loader does. */
static int read_soname(int fd, bool wide, const struct range *dynamic, const struct range *loads, int count,
                       struct elf *elf)
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
    got = read_at(fd, elf->soname, size - soname < SONAME_LIMIT ? size - soname : SONAME_LIMIT, base);
    if (got < 0 || memchr(elf->soname, '\0', (size_t)got) == NULL)
        result = got < 0 ? (int)got : -EBADMSG;
    return result;
}

int elf_read(int fd, struct elf *elf)
{
    uint8_t head[HEAD], table[HEADERS_MAX * 56];
    struct range loads[HEADERS_MAX], dynamic = {0};
    bool is_dynamic = false;
    int load_count = 0;
    ssize_t got = read_at(fd, head, sizeof(head), 0);

    *elf = (struct elf){.bits = 0};
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
    elf->machine = (unsigned)load(head + 18, 2);
    elf->sections = wide ? load(head + 40, 8) : load(head + 32, 4);
    elf->section_size = (unsigned)load(sizes + 4, 2);
    elf->section_count = (unsigned)load(sizes + 6, 2);
    elf->section_names = (unsigned)load(sizes + 8, 2);
    if (count > HEADERS_MAX || (count && size != segment))
        return -EBADMSG;
    if (start < OFFSET_MAX && start + count * segment <= (uint64_t)got) {
        memcpy(table, head + start, count * segment);
    } else {
        got = read_at(fd, table, count * segment, start);
        if (got != (ssize_t)(count * segment))
            return got < 0 ? (int)got : -EBADMSG;
    }
    for (unsigned i = 0; i < count; i++) {
        const uint8_t *at = table + i * segment;
        struct range range = wide ? (struct range){load(at + 16, 8), load(at + 8, 8), load(at + 32, 8)}
                                  : (struct range){load(at + 8, 4), load(at + 4, 4), load(at + 16, 4)};
        if (load(at, 4) == PT_LOAD)
            loads[load_count++] = range;
        else if (load(at, 4) == PT_DYNAMIC)
            dynamic = range, is_dynamic = true;
    }
    return is_dynamic ? read_soname(fd, wide, &dynamic, loads, load_count, elf) : 0;
}

const char *elf_arch(const struct elf *elf)
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
static int read_section(int fd, const struct elf *elf, uint8_t **content, size_t *size)
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

int elf_forward_note(int fd, const struct elf *elf, char **note, size_t *size)
{
    uint8_t *content;
    size_t length = 0;
    int result = read_section(fd, elf, &content, &length);

    *note = NULL;
    for (uint64_t at = 0; content != NULL && at + 12 <= length;) {
        uint64_t owner = load(content + at, 4), data = load(content + at + 4, 4), owner_at = at + 12;
        uint64_t data_at = owner_at + (owner + 3) / 4 * 4;
        at = data_at + (data + 3) / 4 * 4;
        if (data_at + data > length)
            break;
        while (owner > 0 && content[owner_at + owner - 1] == '\0')
            owner--;
        if (owner != sizeof(OWNER) - 1 || memcmp(content + owner_at, OWNER, owner) != 0)
            continue;
        while (data > 0 && content[data_at + data - 1] == '\0')
            data--;
        memmove(content, content + data_at, data);
        *note = (char *)content;
        *size = data;
        return 0;
    }
    free(content);
    return result;
}
