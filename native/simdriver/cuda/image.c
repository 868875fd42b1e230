/* Reads module images. Of PTX text: kernels with their parameters and local memory, and global variables. Other
 * images (cubin, fatbin) are not looked into; only their size is found. */
#include "memory.h"
#include "module.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct word {
    const char *text;
    size_t length;
};

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '.' || c == '%';
}

/* The next word (a name, a directive or one sign) at or after `*at`; comments and blanks are passed over. */
static struct word next_word(const char **at)
{
    const char *c = *at;
    for (;;) {
        while (isspace((unsigned char)*c))
            c++;
        if (c[0] == '/' && c[1] == '/')
            c += strcspn(c, "\n");
        else if (c[0] == '/' && c[1] == '*')
            c = strstr(c + 2, "*/") ? strstr(c + 2, "*/") + 2 : c + strlen(c);
        else
            break;
    }
    struct word word = {c, *c != '\0'};
    if (*c == '"') { /* a text is one word */
        const char *end = strchr(c + 1, '"');
        word.length = end ? (size_t)(end - c) + 1 : strlen(c);
    } else if (is_name(*c))
        while (is_name(c[word.length]))
            word.length++;
    *at = c + word.length;
    return word;
}

static bool is(struct word word, const char *text)
{
    return strlen(text) == word.length && memcmp(word.text, text, word.length) == 0;
}

/* Bytes of a type such as .u64 or .b8; 0: not a type. */
static uint32_t size_of_type(struct word word)
{
    if (word.length < 3 || word.text[0] != '.' || !strchr("busf", word.text[1]))
        return 0;
    const char *digits = word.text + 2;
    while (digits < word.text + word.length && !isdigit((unsigned char)*digits))
        digits++; /* .bf16 */
    bool pair = memcmp(word.text + word.length - 2, "x2", 2) == 0;
    switch (atoi(digits) * (pair ? 2 : 1)) {
    case 8:
        return 1;
    case 16:
        return 2;
    case 32:
        return 4;
    case 64:
        return 8;
    case 128:
        return 16;
    default:
        return 0;
    }
}

struct declaration {
    struct word name;
    uint32_t align;
    uint64_t size;
};

static uint64_t number(struct word word)
{
    return word.length ? strtoull(word.text, NULL, 0) : 0;
}

/* Reads `.align N .type name[count]` behind its directive; false: something else. */
static bool read_declaration(const char **at, struct declaration *out)
{
    struct word word = next_word(at);
    uint32_t element = 0, lanes = 1;
    *out = (struct declaration){.align = 1};
    for (; word.length && word.text[0] == '.'; word = next_word(at)) {
        if (is(word, ".align"))
            out->align = (uint32_t)number(next_word(at));
        else if (is(word, ".v2") || is(word, ".v4"))
            lanes = (uint32_t)(word.text[2] - '0');
        else if (size_of_type(word))
            element = size_of_type(word);
    }
    element *= lanes;
    if (!element || !word.length || !is_name(*word.text))
        return false;
    out->name = word;
    out->size = element;
    if (out->align < element)
        out->align = element;
    const char *ahead = *at;
    if (!is(next_word(&ahead), "["))
        return true;
    uint64_t count = number(next_word(&ahead));
    *at = ahead;
    return !__builtin_mul_overflow(out->size, count, &out->size) && out->size <= UINT64_C(1) << 44;
}

static void read_parameters(const char **at, struct function *function)
{
    uint32_t offset = 0;
    struct word word = next_word(at);
    function->has_parameters = true;
    if (!is(word, "(")) {
        *at = word.text;
        return;
    }
    while (word = next_word(at), word.length && !is(word, ")")) {
        struct declaration declaration;
        if (!is(word, ".param") || !read_declaration(at, &declaration) || function->builtin)
            continue; /* a kernel that we know has the parameters that we know */
        if (function->parameter_count == MAX_PARAMETERS || declaration.size > MAX_ARGUMENTS ||
            !declaration.align)
            break;
        offset = (uint32_t)round_up(offset, declaration.align);
        function->parameters[function->parameter_count++] =
            (struct parameter){offset, (uint32_t)declaration.size};
        offset += (uint32_t)declaration.size;
    }
}

/* The body of a kernel, for the local memory that each thread gets. */
static void read_body(const char **at, struct function *function)
{
    struct word word;
    unsigned int depth = 0;
    uint64_t local = 0;
    while (word = next_word(at), word.length) {
        struct declaration declaration;
        if (is(word, ";") && depth == 0)
            break; /* a declaration without a body */
        if (is(word, "{"))
            depth++;
        else if (is(word, "}") && --depth == 0)
            break;
        else if (is(word, ".local") && read_declaration(at, &declaration))
            local += declaration.size;
    }
    if (local && local <= INT32_MAX)
        function->attributes[CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES] = (int)local;
}

static CUresult read_text(struct module *module, const char *at)
{
    for (struct word word = next_word(&at); word.length; word = next_word(&at)) {
        struct declaration declaration;
        if (is(word, ".entry")) {
            struct word name = next_word(&at);
            struct function *function = module_add_function(module, name.text, name.length);
            CU_REQUIRE(function, CUDA_ERROR_OUT_OF_MEMORY);
            read_parameters(&at, function);
            read_body(&at, function);
        } else if ((is(word, ".global") || is(word, ".const")) && read_declaration(&at, &declaration)) {
            CU_TRY(module_add_variable(module, declaration.name.text, declaration.name.length,
                                       declaration.size));
        } else if (is(word, "{")) {
            for (unsigned int depth = 1; depth && (word = next_word(&at)).length;)
                depth += is(word, "{") ? 1u : is(word, "}") ? -1u : 0u; /* functions that are no kernels */
        }
    }
    return CUDA_SUCCESS;
}

struct elf {
    unsigned char ident[16];
    uint16_t type, machine;
    uint32_t version;
    uint64_t entry, program_at, sections_at;
    uint32_t flags;
    uint16_t size, program_size, program_count, section_size, section_count, names;
};

struct fat {
    uint32_t magic;
    uint16_t version, header_size;
    uint64_t size;
};

struct fat_wrapper {
    uint32_t magic, version;
    const void *data;
};

/* Bytes of an image that is not text; 0: unknown. */
static uint64_t binary_size(const void *image)
{
    uint32_t magic;
    memcpy(&magic, image, sizeof(magic));
    if (magic == 0x466243b1) { /* what a compiler leaves in a program: points to the images */
        struct fat_wrapper wrapper;
        memcpy(&wrapper, image, sizeof(wrapper));
        image = wrapper.data;
        memcpy(&magic, image, sizeof(magic));
    }
    if (magic == 0xba55ed50) {
        struct fat fat;
        memcpy(&fat, image, sizeof(fat));
        return fat.header_size + fat.size;
    }
    if (memcmp(&magic, "\177ELF", 4) == 0) {
        struct elf elf;
        memcpy(&elf, image, sizeof(elf));
        return elf.sections_at + (uint64_t)elf.section_size * elf.section_count;
    }
    return 0;
}

/* Text begins with a printable character, all binary forms do not within four. */
static bool is_text(const char *image)
{
    for (int i = 0; i < 4 && image[i]; i++)
        if (!isprint((unsigned char)image[i]) && !isspace((unsigned char)image[i]))
            return false;
    return image[0] != '\0';
}

CUresult image_read(struct module *module, const void *image)
{
    module->is_text = is_text(image);
    if (module->is_text)
        return read_text(module, image);
    uint64_t size = binary_size(image);
    /* Code up to a megabyte fits where a context has room for it anyway. */
    module->charged = size > MIB && size < UINT64_C(1) << 40 ? round_up(size, PAGE) : 0;
    return CUDA_SUCCESS;
}
