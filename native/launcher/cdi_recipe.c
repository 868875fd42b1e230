/* The readers of what nvc keeps of a slice. Files of root's own, but nobody may read behind their end. */
#include "cdi_recipe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A number at the start of `*text`, and the blank behind it, which is passed. */
static bool number(const char **text, uint64_t most, uint64_t *out)
{
    const char *at = *text;
    uint64_t found = 0;

    for (; *at >= '0' && *at <= '9'; at++) {
        unsigned figure = (unsigned)(*at - '0');
        if (found > (UINT64_MAX - figure) / 10)
            return false;
        found = 10 * found + figure;
    }
    if (at == *text || (*at != ' ' && *at != '\0') || found > most)
        return false;
    *text = at + (*at == ' ');
    *out = found;
    return true;
}

static bool word(struct recipe_words *words, const char *value)
{
    if (words->count == RECIPE_ITEMS)
        return false;
    words->at[words->count++] = value;
    return true;
}

static bool node(struct recipe *recipe, const char *value)
{
    uint64_t major, minor;

    if (recipe->node_count == RECIPE_ITEMS || !number(&value, UINT32_MAX, &major) ||
        !number(&value, UINT32_MAX, &minor) || *value)
        return false;
    recipe->nodes[recipe->node_count++] = (struct recipe_node){(uint32_t)major, (uint32_t)minor};
    return true;
}

static bool library(struct recipe *recipe, char *value)
{
    struct recipe_library found = {.soname = value};
    char *blank = strchr(value, ' ');

    if (recipe->shimmed_count == RECIPE_LIBRARIES || !blank || blank == value)
        return false;
    *blank = '\0';
    const char *rest = blank + 1;
    if (!number(&rest, UINT64_MAX, &found.device) || !number(&rest, UINT64_MAX, &found.inode) ||
        !number(&rest, INT64_MAX, &found.size) || !number(&rest, INT64_MAX, &found.mtime))
        return false;
    found.path = rest;
    recipe->shimmed[recipe->shimmed_count++] = found;
    return *rest == '/' && !strchr(found.soname, '/');
}

static bool cover(struct recipe *recipe, const char *value)
{
    if (recipe->cover_count == RECIPE_COVERS || *value != '/')
        return false;
    recipe->covers[recipe->cover_count++] = value;
    return true;
}

static int figure(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Puts bytes in the place of %xx. */
static bool unquote(char *text)
{
    char *out = text;

    while (*text) {
        if (*text != '%') {
            *out++ = *text++;
            continue;
        }
        int high = figure(text[1]), low = high < 0 ? -1 : figure(text[2]);
        if (low < 0 || !(high | low))
            return false;
        *out++ = (char)(16 * high + low);
        text += 3;
    }
    *out = '\0';
    return true;
}

static bool look(struct recipe *recipe, char *value)
{
    char *blank = strchr(value, ' ');

    if (recipe->look_count == RECIPE_LOOKS || value[0] != 'S' || !blank)
        return false;
    *blank = '\0';
    recipe->looks[recipe->look_count++] = (struct recipe_look){value, blank + 1};
    return unquote(value) && unquote(blank + 1);
}

static bool once(const char **field, const char *value)
{
    if (*field || !*value)
        return false;
    *field = value;
    return true;
}

static bool take(struct recipe *recipe, const char *name, char *value)
{
    const char *rest = value;
    uint64_t flag;

    if (!strcmp(name, "option"))
        return word(&recipe->options, value);
    if (!strcmp(name, "slice"))
        return word(&recipe->slices, value);
    if (!strcmp(name, "search"))
        return word(&recipe->search, value);
    if (!strcmp(name, "node"))
        return node(recipe, value);
    if (!strcmp(name, "shim"))
        return library(recipe, value);
    if (!strcmp(name, "cover"))
        return cover(recipe, value);
    if (!strcmp(name, "look"))
        return look(recipe, value);
    if (!strcmp(name, "system"))
        return once(&recipe->system, value) && *value == '/';
    if (!strcmp(name, "driver"))
        return once(&recipe->driver, value);
    if (!strcmp(name, "root"))
        return once(&recipe->root, value) && *value == '/';
    if (!strcmp(name, "libraries"))
        return once(&recipe->libraries, value) && *value == '/';
    if (!strcmp(name, "ledger"))
        return !recipe->ledger && number(&rest, INT64_MAX, &recipe->ledger) && !*rest;
    if (strcmp(name, "nvcd") != 0 || !number(&rest, 1, &flag) || *rest)
        return false;
    recipe->nvcd = flag;
    return true;
}

bool recipe_parse(char *text, size_t size, const char *version, struct recipe *recipe)
{
    bool begun = false;

    *recipe = (struct recipe){.driver = NULL};
    if (strlen(text) != size)
        return false;
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = '\0';
        for (const char *at = line; *at; at++)
            if (*at < ' ' || *at > '~')
                return false;
        if (!strcmp(line, "end"))
            return begun && end[1] == '\0' && recipe->driver && recipe->root && recipe->libraries &&
                   recipe->system && recipe->ledger && recipe->slices.count && recipe->shimmed_count &&
                   recipe->look_count;
        char *value = strchr(line, ' ');
        if (!value)
            return false;
        *value++ = '\0';
        if (begun ? !take(recipe, line, value) : strcmp(line, "nvc") || strcmp(value, version))
            return false;
        begun = true;
    }
    return false;
}

static size_t line_length(const char *text, size_t size)
{
    const char *end = memchr(text, '\n', size);
    return end ? (size_t)(end - text) : size;
}

static bool is_line(const char *line, size_t length, const char *name)
{
    size_t size = strlen(name);
    return length > size && !memcmp(line, name, size) && line[size] == ' ';
}

/* Passes a number, and the blank behind it. */
static bool pass_number(const char **at, const char *end, uint64_t most)
{
    const char *start = *at;
    uint64_t found = 0;

    for (; *at < end && **at >= '0' && **at <= '9' && *at - start < 18; ++*at)
        found = 10 * found + (uint64_t)(**at - '0');
    bool whole = *at > start && found <= most && (*at == end || **at == ' ');
    *at += whole && *at < end;
    return whole;
}

static bool pass_word(const char **at, const char *end)
{
    const char *blank = memchr(*at, ' ', (size_t)(end - *at));

    *at = blank ? blank + 1 : end;
    return blank;
}

/* Whether a line of `about` is one that `read_entry` of nvc/slices/model/entry.py takes; `devices` are those above it. */
static bool is_sound(const char *line, const char *end, size_t *devices)
{
    static const char *const numbers[] = {"pid", "start", "created", "mounts"};
    const char *blank = memchr(line, ' ', (size_t)(end - line)), *at = blank ? blank + 1 : end;
    size_t length = (size_t)((blank ? blank : end) - line);

    for (const char *byte = line; byte < end; byte++)
        if (*byte < ' ' || *byte > '~' ||
            (*byte == '%' && (end - byte < 3 || figure(byte[1]) < 0 || figure(byte[2]) < 0)))
            return false;
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (length == strlen(numbers[i]) && !memcmp(line, numbers[i], length))
            return pass_number(&at, end, INT64_MAX) && at == end;
    if (length == 6 && !memcmp(line, "device", length)) {
        ++*devices;
        return pass_word(&at, end) && pass_word(&at, end) && pass_number(&at, end, INT64_MAX) &&
               at[-1] == ' ';
    }
    if ((length == 6 && !memcmp(line, "policy", length)) ||
        (length == 8 && !memcmp(line, "reserved", length)))
        return *devices && pass_number(&at, end, *devices - 1) &&
               pass_number(&at, end, length == 6 ? UINT32_MAX : INT64_MAX) && at == end;
    return true;
}

bool about_is_whole(const char *text, size_t size)
{
    char wanted[32];
    size_t lines = 0, first = line_length(text, size), devices = 0;

    if (size == 0 || text[size - 1] != '\n')
        return false;
    for (size_t at = 0, line; at < size; at += line + 1, lines++) {
        line = line_length(text + at, size - at);
        if (!is_sound(text + at, text + at + line, &devices))
            return false;
    }
    int length = snprintf(wanted, sizeof(wanted), "lines %zu", lines - 1);
    return first == (size_t)length && !memcmp(text, wanted, first);
}

const char *about_value(const char *text, size_t size, const char *name, size_t *length)
{
    const char *found = NULL;

    for (size_t at = 0; at < size;) {
        size_t line = line_length(text + at, size - at);
        if (is_line(text + at, line, name)) { /* the last counts */
            found = text + at + strlen(name) + 1;
            *length = line - strlen(name) - 1;
        }
        at += line + 1;
    }
    return found;
}

/* One line. As in nvc/slices/model/entry.py, a value is ASCII, and other bytes and `%` become %xx. */
static void put(FILE *out, const char *name, const char *value)
{
    fprintf(out, "%s ", name);
    for (; *value; value++)
        fprintf(out, *value < ' ' || *value > '~' || *value == '%' ? "%%%02x" : "%c", (unsigned char)*value);
    fputc('\n', out);
}

char *about_of(const char *text, size_t size, const char *rootfs, const char *container, const char *bundle,
               size_t *made)
{
    char *body = NULL, *whole = NULL;
    size_t body_size = 0, lines = 0;
    bool named = false;
    FILE *out = open_memstream(&body, &body_size);

    if (!out)
        return NULL;
    for (size_t at = line_length(text, size) + 1; at < size;) { /* behind the number of lines */
        const char *line = text + at;
        size_t length = line_length(line, size - at);
        /* In the order of `text_of` there. */
        bool behind = is_line(line, length, "cgroup") || is_line(line, length, "program") ||
                      is_line(line, length, "claim") || is_line(line, length, "holds");
        if (behind && !named) {
            if (*container)
                put(out, "container", container);
            if (*bundle)
                put(out, "bundle", bundle);
            named = true;
        }
        if (is_line(line, length, "rootfs"))
            put(out, "rootfs", rootfs);
        else if (!is_line(line, length, "container") && !is_line(line, length, "bundle"))
            fprintf(out, "%.*s\n", (int)length, line);
        at += length + 1;
    }
    if (fclose(out) == 0 && named) {
        for (size_t i = 0; i < body_size; i++)
            lines += body[i] == '\n';
        int length = asprintf(&whole, "lines %zu\n%s", lines, body);
        *made = length < 0 ? 0 : (size_t)length;
        whole = length < 0 ? NULL : whole;
    }
    free(body);
    return whole;
}

/* Goes through the words of a list: the next one at or behind `*at`. */
static bool next_word(const char *text, size_t size, size_t *at, const char **start, size_t *length)
{
    while (*at < size && text[*at] == ' ')
        ++*at;
    *start = text + *at;
    for (*length = 0; *at < size && text[*at] != ' '; ++*at)
        ++*length;
    return *length > 0;
}

static bool has_word(const char *text, size_t size, const char *wanted, size_t wanted_length)
{
    const char *start;
    size_t length;

    for (size_t at = 0; next_word(text, size, &at, &start, &length);)
        if (length == wanted_length && !memcmp(start, wanted, length))
            return true;
    return false;
}

static bool has_all(const char *text, size_t size, const char *other, size_t other_size)
{
    const char *start;
    size_t length;

    for (size_t at = 0; next_word(other, other_size, &at, &start, &length);)
        if (!has_word(text, size, start, length))
            return false;
    return true;
}

bool words_equal(const char *one, size_t one_size, const char *other, size_t other_size)
{
    return has_all(one, one_size, other, other_size) && has_all(other, other_size, one, one_size);
}

bool words_meet(const char *one, size_t one_size, const char *other, size_t other_size)
{
    const char *start;
    size_t length;

    for (size_t at = 0; next_word(one, one_size, &at, &start, &length);)
        if (has_word(other, other_size, start, length))
            return true;
    return false;
}
