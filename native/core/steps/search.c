/* In which directories a loader looks for what a directory of LD_LIBRARY_PATH says: ld.so(8). What depends on the image's
 * loader, or on the processor, is searched in every way; and `..` as text, and as the image's links have it. */
#include "_steps.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

/* What `$LIB` and `$PLATFORM` stand for: as Fedora, Debian and Arch build their loaders, for both word sizes; and as
 * the kernel or, for some processors, glibc 2.26 to 2.36 say. */
#ifdef __x86_64__
static const char *const LIB[] = {"lib64", "lib/x86_64-linux-gnu", "lib", "lib32", "lib/i386-linux-gnu"};
static const char *const PLATFORM[] = {"x86_64", "haswell", "xeon_phi", "i686"};
#else
static const char *const LIB[] = {"lib64", "lib/aarch64-linux-gnu", "lib", "lib/arm-linux-gnueabihf"};
static const char *const PLATFORM[] = {"aarch64", "v8l", "v7l"};
#endif

/* Subdirectories that loaders prefer to the directory itself. They nest, such as tls/haswell/avx512_1/x86_64. Those of
 * glibc-hwcaps are since glibc 2.33, the others until 2.36. */
static const char *const BEFORE[] = {"glibc-hwcaps", "tls",     "x86_64",  "haswell", "xeon_phi",
                                     "avx512_1",     "sse2",    "i386",    "i486",    "i586",
                                     "i686",         "aarch64", "atomics", "v7l",     "v8l"};
#define LEVELS "x86-64-v" /* below glibc-hwcaps; levels to come have such names too */

bool search_is_before(const char *name)
{
    if (strncmp(name, "lib", 3) == 0) /* most of all */
        return false;
    for (size_t i = 0; i < COUNT(BEFORE); i++)
        if (strcmp(name, BEFORE[i]) == 0)
            return true;
    return strncmp(name, LEVELS, strlen(LEVELS)) == 0;
}

void search_add(struct nvc_steps *s, struct rows *directories, const char *path)
{
    if (rows_have(directories, path))
        return;
    if (directories->count == NVC_STEPS_SEARCHED_MAX)
        steps_fail(s, EOVERFLOW, "make a slice", path);
    else
        rows_add(s, directories, path, NULL, NULL);
}

/* An absolute path without empty parts, `.` and `..`, as loaders understand it; false for any other. */
bool search_clean(const char *path, char out[NVC_STEPS_PATH])
{
    size_t length = 0;

    if (path[0] != '/' || strlen(path) >= NVC_STEPS_PATH)
        return false;
    while (*path) {
        size_t part = strcspn(path, "/");
        if (part == 2 && memcmp(path, "..", 2) == 0) {
            while (length > 0 && out[--length] != '/')
                ;
        } else if (part > 0 && !(part == 1 && *path == '.')) {
            out[length++] = '/';
            memcpy(out + length, path, part);
            length += part;
        }
        path += part + (path[part] == '/');
    }
    if (length == 0)
        out[length++] = '/';
    out[length] = '\0';
    return true;
}

/* How long the token `name` at `text` is, as `$name` or `${name}`; 0: it is none. */
static size_t token_at(const char *text, const char *name)
{
    size_t braces = text[0] == '$' && text[1] == '{', length = strlen(name);
    const char *end = text + 1 + braces + length;

    if (text[0] != '$' || strncmp(text + 1 + braces, name, length) != 0)
        return 0;
    if (braces)
        return *end == '}' ? length + 3 : 0;
    return isalnum((unsigned char)*end) || *end == '_' ? 0 : length + 1;
}

/* `item` with these values; false where it is too long for a path. */
static bool substitute(const char *item, const char *lib, const char *platform, char out[NVC_STEPS_PATH])
{
    size_t length = 0;

    while (*item) {
        size_t token = token_at(item, "LIB"), part = 1;
        const char *from = lib;
        if (token == 0) {
            token = token_at(item, "PLATFORM");
            from = platform;
        }
        if (token > 0)
            part = strlen(from);
        else
            from = item;
        if (length + part >= NVC_STEPS_PATH)
            return false;
        memcpy(out + length, from, part);
        length += part;
        item += token > 0 ? token : 1;
    }
    out[length] = '\0';
    return true;
}

void search_item(struct nvc_steps *s, struct rows *directories, const char *item)
{
    bool plain = strchr(item, '$') == NULL, up = strstr(item, "/..") != NULL;
    char text[NVC_STEPS_PATH], path[NVC_STEPS_PATH];

    for (size_t i = 0; i < (plain ? 1 : COUNT(LIB) * COUNT(PLATFORM)) && !s->failed; i++) {
        /* CUDA's stubs are for linking only: they have no code, and programs are linked against them. */
        if (!substitute(item, LIB[i / COUNT(PLATFORM)], PLATFORM[i % COUNT(PLATFORM)], text) ||
            !search_clean(text, path) || strcmp(strrchr(path, '/'), "/stubs") == 0)
            continue;
        search_add(s, directories, path);
        if (up && follow(s, text, path))
            search_add(s, directories, path);
    }
}
