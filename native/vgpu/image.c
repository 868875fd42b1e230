/* What the driver compiles or unpacks itself is not looked into: compressed images count with their data unseen. */
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

#define MOST (UINT64_C(1) << 40)

static uint64_t elf_bytes(const char *image, uint64_t room, bool code)
{
    Elf64_Ehdr header;
    uint64_t sum = 0;
    memcpy(&header, image, sizeof(header));
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr) ||
        header.e_shoff > room || header.e_shnum * sizeof(Elf64_Shdr) > room - header.e_shoff)
        return 0;
    for (unsigned int i = 0; i < header.e_shnum; i++) {
        Elf64_Shdr section;
        memcpy(&section, image + header.e_shoff + (uint64_t)i * sizeof(section), sizeof(section));
        bool text = section.sh_flags & SHF_EXECINSTR;
        if (section.sh_flags & SHF_ALLOC && (code || !text) && section.sh_size < UINT64_C(1) << 44)
            sum += section.sh_size;
    }
    return sum;
}

/* Bytes of a type such as .u64 or .b8; 0: not a type. */
static uint64_t type_bytes(const char *word, size_t length)
{
    if (length < 3 || length > 5 || !strchr("busf", word[1]))
        return 0;
    int bits = atoi(word + 2);
    return bits >= 8 && bits <= 128 ? (uint64_t)bits / 8 : 0;
}

static size_t word_length(const char *at)
{
    size_t length = *at == '.';
    while (isalnum((unsigned char)at[length]) || at[length] == '_' || at[length] == '$' || at[length] == '%')
        length++;
    return length;
}

/* One declaration behind `.global` or `.const`, up to its end: the type's size times all dimensions. */
static uint64_t declared_bytes(const char *at)
{
    uint64_t bytes = 0;
    while (*at && *at != ';' && *at != '=' && *at != '{' && *at != '(') {
        size_t length = word_length(at);
        if (*at == '[') {
            uint64_t count = strtoull(at + 1, NULL, 0);
            if (__builtin_mul_overflow(bytes, count ? count : 1, &bytes) || bytes > UINT64_C(1) << 44)
                return UINT64_C(1) << 44;
        }
        if (*at == '.' && type_bytes(at, length))
            bytes = type_bytes(at, length);
        at += length ? length : 1;
    }
    return bytes;
}

/* Variables stand outside of functions; loads name the same words as `ld.global`. */
static uint64_t ptx_bytes(const char *at)
{
    uint64_t sum = 0;
    unsigned int depth = 0;
    while (*at) {
        size_t length = word_length(at);
        if (at[0] == '/' && at[1] == '/') {
            at += strcspn(at, "\n");
            continue;
        }
        if (at[0] == '/' && at[1] == '*') {
            const char *end = strstr(at + 2, "*/");
            at = end ? end + 2 : at + strlen(at);
            continue;
        }
        if (*at == '{')
            depth++;
        else if (*at == '}' && depth)
            depth--;
        bool global = length == 7 && strncmp(at, ".global", 7) == 0;
        bool constant = length == 6 && strncmp(at, ".const", 6) == 0;
        if (depth == 0 && (global || constant))
            sum += declared_bytes(at + length);
        at += length ? length : 1;
    }
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
static uint64_t fat_bytes(const char *image, uint64_t room, bool code)
{
    struct fat fat;
    struct fat_entry entry;
    uint64_t most = 0;
    memcpy(&fat, image, sizeof(fat));
    if (fat.header_size > room || fat.size > room - fat.header_size)
        return 0;
    const char *at = image + fat.header_size, *end = at + fat.size;
    while ((size_t)(end - at) >= sizeof(entry)) {
        memcpy(&entry, at, sizeof(entry));
        if (entry.header_size < sizeof(entry) || entry.header_size > (uint64_t)(end - at) ||
            entry.size > (uint64_t)(end - at) - entry.header_size)
            break;
        const char *data = at + entry.header_size;
        bool plain = !(entry.flags & FAT_COMPRESSED) && entry.size > sizeof(Elf64_Ehdr);
        uint64_t bytes = 0;
        if (plain && entry.kind == FAT_ELF && memcmp(data, ELFMAG, SELFMAG) == 0)
            bytes = elf_bytes(data, entry.size, code);
        else if (plain && entry.kind == FAT_PTX && memchr(data, '\0', entry.size))
            bytes = ptx_bytes(data);
        most = bytes > most ? bytes : most;
        at = data + entry.size;
    }
    return most;
}

uint64_t image_bytes(const void *image, size_t size, bool code)
{
    uint32_t magic;
    uint64_t room = size ? size : MOST;
    memcpy(&magic, image, sizeof(magic));
    if (magic == FAT_WRAPPER && !size) {
        const void *inner;
        memcpy(&inner, (const char *)image + 8, sizeof(inner));
        if (!inner)
            return 0;
        image = inner;
        memcpy(&magic, image, sizeof(magic));
    }
    if (magic == (uint32_t)FAT_MAGIC)
        return fat_bytes(image, room, code);
    if (memcmp(&magic, ELFMAG, SELFMAG) == 0)
        return elf_bytes(image, room, code);
    for (int i = 0; i < 4; i++) {
        unsigned char c = ((const unsigned char *)image)[i];
        if (!isprint(c) && !isspace(c))
            return 0;
    }
    return ptx_bytes(image);
}
