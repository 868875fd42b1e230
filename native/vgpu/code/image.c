/* An image is exact only if every part of it was understood: whoever loads another asks the driver what it took. */
#include "image.h"

#include <ctype.h>
#include <elf.h>
#include <stdlib.h>
#include <string.h>

enum {
    FAT_WRAPPER = 0x466243b1,
    FAT_MAGIC = (int)0xba55ed50,
    FAT_PTX = 1,
    FAT_ELF = 2,
    FAT_COMPRESSED = 0xa000
};

#define MOST (UINT64_C(1) << 40)    /* bytes of an image that nobody knows the size of */
#define LARGEST (UINT64_C(1) << 44) /* of a variable that can be */

static struct image elf_image(const char *image, uint64_t room, bool code)
{
    Elf64_Ehdr header;
    struct image found = {0};
    memcpy(&header, image, sizeof(header));
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr) ||
        !header.e_shnum || header.e_shoff > room ||
        header.e_shnum * sizeof(Elf64_Shdr) > room - header.e_shoff)
        return found;
    found.exact = true;
    for (unsigned int i = 0; i < header.e_shnum; i++) {
        Elf64_Shdr section;
        memcpy(&section, image + header.e_shoff + (uint64_t)i * sizeof(section), sizeof(section));
        bool text = section.sh_flags & SHF_EXECINSTR;
        if (!(section.sh_flags & SHF_ALLOC) || (text && !code))
            continue;
        found.exact &= section.sh_size < LARGEST;
        found.bytes += section.sh_size < LARGEST ? section.sh_size : LARGEST;
    }
    return found;
}

static bool is_word(const char *at, size_t length, const char *word)
{
    return strlen(word) == length && memcmp(at, word, length) == 0;
}

/* Bytes of a type such as .u64, .b8 or .f16x2; 0: not a type. */
static uint64_t type_bytes(const char *word, size_t length)
{
    char *end;
    size_t letters = *word == '.' ? strspn(word + 1, "bfsu") : 0;
    if (!letters || !isdigit((unsigned char)word[1 + letters]))
        return 0;
    uint64_t bits = strtoull(word + 1 + letters, &end, 10), lanes = 1;
    if (*end == 'x')
        lanes = strtoull(end + 1, &end, 10);
    return end == word + length ? bits / 8 * lanes : 0;
}

static bool is_part(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%';
}

static size_t word_length(const char *at)
{
    size_t length = *at == '.';
    while (is_part(at[length]))
        length++;
    return length;
}

/* Blanks, comments and line ends; what ends nowhere ends the text. */
static const char *skip_blank(const char *at)
{
    for (;;) {
        while (isspace((unsigned char)*at))
            at++;
        if (at[0] == '/' && at[1] == '/') {
            at += strcspn(at, "\n");
        } else if (at[0] == '/' && at[1] == '*') {
            const char *end = strstr(at + 2, "*/");
            at = end ? end + 2 : at + strlen(at);
        } else {
            return at;
        }
    }
}

/* Behind a text in quotation marks. */
static const char *skip_text(const char *at)
{
    for (at++; *at && *at != '"'; at++)
        at += *at == '\\' && at[1];
    return at + (*at == '"');
}

/* A plain number in brackets; false: an expression, or none. */
static bool read_count(const char **at, uint64_t *count)
{
    char *end;
    const char *from = skip_blank(*at + 1);
    *count = strtoull(from, &end, 0);
    if (!isdigit((unsigned char)*from))
        return false;
    end += *end == 'U';
    *at = skip_blank(end);
    if (**at != ']')
        return false;
    ++*at;
    return true;
}

/* One declaration behind `.global` or `.const`: alignment, vector, type, name, dimensions, and what it begins with. Any
 * other form is one that is not understood. */
static struct image declared(const char *at)
{
    struct image none = {0};
    uint64_t bytes = 0, lanes = 1, count;
    bool named = false;
    for (at = skip_blank(at); *at && *at != ';' && *at != '='; at = skip_blank(at)) {
        size_t length = word_length(at);
        if (*at == '[' && named && read_count(&at, &count)) {
            if (__builtin_mul_overflow(bytes, count, &bytes) || bytes > LARGEST)
                return none;
        } else if (is_word(at, length, ".align")) {
            at = skip_blank(at + length);
            at += strspn(at, "0123456789");
        } else if (is_word(at, length, ".v2") || is_word(at, length, ".v4") || is_word(at, length, ".v8")) {
            lanes = (uint64_t)(at[2] - '0');
            at += length;
        } else if (type_bytes(at, length) && !bytes) {
            bytes = type_bytes(at, length);
            at += length;
        } else if (length && *at != '.' && !named) {
            named = true;
            at += length;
        } else {
            return none;
        }
    }
    return (struct image){bytes * lanes, named && bytes && *at};
}

/* Variables stand outside of functions; loads name the same words as `ld.global`. */
static struct image ptx_image(const char *at)
{
    struct image sum = {.exact = true};
    unsigned int depth = 0;
    for (at = skip_blank(at); *at; at = skip_blank(at)) {
        size_t length = word_length(at);
        if (*at == '"') {
            at = skip_text(at);
            continue;
        }
        if (*at == '{')
            depth++;
        else if (*at == '}' && depth)
            depth--;
        else if (*at == '}')
            sum.exact = false;
        if (depth == 0 && (is_word(at, length, ".global") || is_word(at, length, ".const"))) {
            struct image one = declared(at + length);
            sum.bytes += one.bytes;
            sum.exact &= one.exact && sum.bytes <= LARGEST;
        }
        at += length ? length : 1;
    }
    sum.exact &= depth == 0;
    return sum;
}

struct fat {
    uint32_t magic;
    uint16_t version, header_size;
    uint64_t size;
};

struct fat_entry {
    uint16_t kind, unknown;
    uint32_t header_size;
    uint64_t size;
    uint32_t compressed_size, options;
    uint16_t minor, major;
    uint32_t arch, name_offset, name_size;
    uint64_t flags;
};

/* Of several images for several GPUs one is taken: the largest stands for it. */
static struct image fat_image(const char *image, uint64_t room, bool code)
{
    struct fat fat;
    struct fat_entry entry;
    struct image most = {0};
    memcpy(&fat, image, sizeof(fat));
    if (fat.header_size > room || fat.size > room - fat.header_size)
        return most;
    const char *at = image + fat.header_size, *end = at + fat.size;
    most.exact = at < end;
    while ((size_t)(end - at) >= sizeof(entry)) {
        memcpy(&entry, at, sizeof(entry));
        if (entry.header_size < sizeof(entry) || entry.header_size > (uint64_t)(end - at) ||
            entry.size > (uint64_t)(end - at) - entry.header_size)
            break;
        const char *data = at + entry.header_size;
        bool plain = !(entry.flags & FAT_COMPRESSED) && entry.size > sizeof(Elf64_Ehdr);
        struct image one = {0};
        if (plain && entry.kind == FAT_ELF && memcmp(data, ELFMAG, SELFMAG) == 0)
            one = elf_image(data, entry.size, code);
        else if (plain && entry.kind == FAT_PTX && memchr(data, '\0', entry.size))
            one = ptx_image(data);
        most.exact &= one.exact;
        most.bytes = one.bytes > most.bytes ? one.bytes : most.bytes;
        at = data + entry.size;
    }
    most.exact &= at == end;
    return most;
}

struct image image_read(const void *image, size_t size, bool code)
{
    uint32_t magic;
    uint64_t room = size ? size : MOST;
    memcpy(&magic, image, sizeof(magic));
    if (magic == FAT_WRAPPER && !size) {
        const void *inner;
        memcpy(&inner, (const char *)image + 8, sizeof(inner));
        if (!inner)
            return (struct image){0};
        image = inner;
        memcpy(&magic, image, sizeof(magic));
    }
    if (magic == (uint32_t)FAT_MAGIC)
        return fat_image(image, room, code);
    if (memcmp(&magic, ELFMAG, SELFMAG) == 0)
        return elf_image(image, room, code);
    for (int i = 0; i < 4; i++) {
        unsigned char c = ((const unsigned char *)image)[i];
        if (!isprint(c) && !isspace(c))
            return (struct image){0};
    }
    return ptx_image(image);
}
