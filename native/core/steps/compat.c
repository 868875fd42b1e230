/* CUDA forward-compatibility libraries that an image brings along. They stay where they are: the loader cache names them
 * before the driver's. Everything read here is the image's. What cannot be read does not count. */
#include "_json.h"
#include "_steps.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ENTRIES_MAX = 256, NOTE_MAX = 64 << 10, PARTS_MAX = 128, DIGITS_MAX = 6 };

/* Numbers between dots; none where the text is anything else. */
struct version {
    int count;
    unsigned parts[PARTS_MAX];
};

static struct version numbers(const char *text, size_t length)
{
    struct version version = {0};
    int figures = 0;

    for (size_t i = 0; i <= length; i++) {
        if (i < length && text[i] >= '0' && text[i] <= '9' && figures++ < DIGITS_MAX) {
            version.parts[version.count] = version.parts[version.count] * 10 + (unsigned)(text[i] - '0');
        } else if ((i == length || text[i] == '.') && figures > 0 && version.count < PARTS_MAX - 1) {
            version.parts[++version.count] = 0;
            figures = 0;
        } else {
            return (struct version){0};
        }
    }
    return version;
}

/* The numbers behind `.so.` in a file name. */
static struct version version_of(const char *name)
{
    const char *at = strstr(name, ".so.");
    return at ? numbers(at + 4, strlen(at + 4)) : (struct version){0};
}

/* As tuples compare: the shorter one is the smaller where it begins the other. */
static int compare(const struct version *one, const struct version *other)
{
    for (int i = 0; i < one->count && i < other->count; i++)
        if (one->parts[i] != other->parts[i])
            return one->parts[i] < other->parts[i] ? -1 : 1;
    return (one->count > other->count) - (one->count < other->count);
}

/* Whether the note names drivers of the major version `driver`. */
static bool names_driver(const struct json *json, uint32_t list, unsigned driver)
{
    for (uint32_t i = list + 1; i < json->tokens[list].next; i = json->tokens[i].next) {
        const struct json_token *item = &json->tokens[i];
        size_t length = item->end - item->start;
        const char *text = json->text + item->start;
        if (item->kind != '"' && item->kind != '0')
            continue;
        const char *dot = memchr(text, '.', length);
        struct version major = numbers(text, dot ? (size_t)(dot - text) : length);
        /* 0535 is another text than 535. */
        if (major.count == 1 && major.parts[0] == driver && (text[0] != '0' || length == 1))
            return true;
    }
    return false;
}

/* The version in the note of the newest CUDA that it is for: none where it names none, `odd` where that is unclear. */
static struct version newest_cuda(const struct json *json, bool *odd)
{
    uint32_t at = json_get(json, 0, "CUDA Version", odd);
    const struct json_token *token = &json->tokens[at];
    char text[64] = "";

    if (at == 0 || token->kind == 'n')
        return (struct version){0};
    if (token->kind == '0')
        return numbers(json->text + token->start, token->end - token->start);
    if (!json_text(json, at, text, sizeof(text)))
        *odd = true;
    return numbers(text, strlen(text));
}

static int note_allows(const char *note, size_t size, const struct version *driver,
                       const struct version *version, const char *cuda)
{
    struct json json;
    bool odd = false;

    int result = size > NOTE_MAX ? -EBADMSG : json_parse(note, size, &json);
    if (result < 0)
        return result == -EBADMSG ? 0 : result;
    uint32_t list = json_get(&json, 0, "Driver", &odd);
    struct version newest = newest_cuda(&json, &odd), host = numbers(cuda, strlen(cuda));
    bool allows = list && json.tokens[list].kind == '[' && names_driver(&json, list, driver->parts[0]) &&
                  compare(version, driver) > 0;
    json_free(&json);
    return allows && !odd && !(newest.count && *cuda && compare(&newest, &host) <= 0);
}

/* Whether a libcuda may stand in for that of a host: by its `version`, the digits behind `.so.`, and its note of forward
 * compatibility, NULL where it has none. */
static int suits(const char *version, const char *note, size_t size, const char *driver, const char *cuda)
{
    struct version own = numbers(version, strlen(version)), host = numbers(driver, strlen(driver));

    if (own.count < 2 || host.count == 0)
        return 0;
    return note ? note_allows(note, size, &host, &own, cuda) : own.parts[0] > host.parts[0];
}

static bool is_for(struct nvc_steps *s, int fd, const struct nvc_elf *elf, const char *driver,
                   const char *name, const char *cuda)
{
    size_t size = 0;
    char *note;

    int result = elf_forward_note(fd, elf, &note, &size);
    if (result < 0 && tells_nothing(-result))
        steps_fail(s, -result, "read library of the image", "");
    int fits = result == 0 ? suits(strstr(name, ".so.") + 4, note, size, driver, cuda) : 0;
    free(note);
    if (fits < 0)
        steps_fail(s, -fits, "read note", "");
    return fits > 0;
}

/* A descriptor of the library, and what it says; -1 where it is none. */
static int open_library(struct nvc_steps *s, const char *path, struct nvc_elf *elf)
{
    int fd = look_regular(s, s->rootfs, path);

    if (fd < 0)
        return -1;
    int result = nvc_elf_read(fd, elf);
    if (result == 0)
        return fd;
    if (tells_nothing(-result))
        steps_fail(s, -result, "read library of the image", path);
    close(fd);
    return -1;
}

static void add_library(struct nvc_steps *s, const char *directory, const char *name)
{
    char path[NVC_STEPS_PATH];
    struct nvc_elf elf;

    if (!steps_join(s, path, directory, name))
        return;
    int fd = open_library(s, path, &elf);
    if (fd < 0)
        return;
    close(fd);
    if (elf.soname[0] && is_plain(elf.soname) && is_plain(path))
        rows_add(s, &s->compat, elf.soname, path, NULL);
}

/* Whether the file is one of `shims`. */
static bool is_shim(int fd, const struct nvc_steps_file *shims, size_t count)
{
    struct stat st;
    bool known = count && fstat(fd, &st) == 0, found = false;

    for (size_t i = 0; known && i < count; i++)
        found = found || (shims[i].device == st.st_dev && shims[i].inode == st.st_ino);
    return found;
}

int nvc_steps_compat(struct nvc_steps *s, const char *driver, const char *cuda, const char *directory,
                     const struct nvc_steps_file *shims, size_t shim_count)
{
    struct version newest = {0};
    struct rows names = {.at = NULL};
    const char *main = NULL;
    char path[NVC_STEPS_PATH];
    struct nvc_elf elf;
    int fd = look(s, s->rootfs, directory, O_RDONLY | O_DIRECTORY);

    if (fd < 0)
        return s->failed ? -1 : 0;
    names_in(s, fd, &names, ENTRIES_MAX);
    close(fd);
    rows_sort(&names);
    for (size_t i = 0; i < names.count; i++) {
        struct version version = version_of(names.at[i].a);
        if (strncmp(names.at[i].a, "libcuda.so.", 11) == 0 && compare(&version, &newest) > 0) {
            newest = version;
            main = names.at[i].a;
        }
    }
    fd = newest.count >= 2 && steps_join(s, path, directory, main) ? open_library(s, path, &elf) : -1;
    if (fd >= 0 && (is_shim(fd, shims, shim_count) || is_for(s, fd, &elf, driver, main, cuda))) {
        for (size_t i = 0; i < names.count; i++) {
            struct version version = version_of(names.at[i].a);
            if (strncmp(names.at[i].a, "lib", 3) == 0 && compare(&version, &newest) == 0)
                add_library(s, directory, names.at[i].a);
        }
    }
    shut(fd);
    rows_free(&names);
    return s->failed ? -1 : 0;
}
