/* What an OCI runtime tells a hook: the state document, and the bundle that it names. What is not as the specification
 * says is for Python to refuse: nvc/request/oci.py, nvc/frontends/cdi/hooks/bundle.py. */
#include "_json.h"
#include "cdi.h"
#include "variables.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONFIG_MAX (16u << 20)
#define PID_MAX (1 << 22)
#define HOOKS_MAX 4096

/* A configuration while it is read: values are indices of tokens, 0 is none. */
struct reading {
    struct json json;
    bool odd; /* something is not what it should be */
};

/* The value of a key, 0 where it is absent or null; odd where it is of another kind. */
static uint32_t typed(struct reading *in, uint32_t at, const char *key, char kind)
{
    uint32_t found = json_get(&in->json, at, key, &in->odd);

    if (found && in->json.tokens[found].kind == 'n')
        return 0;
    if (found && in->json.tokens[found].kind != kind)
        in->odd = true;
    return in->odd ? 0 : found;
}

/* The first item of a list, 0 where there is none. */
static uint32_t first(const struct reading *in, uint32_t list)
{
    return list && in->json.tokens[list].next > list + 1 ? list + 1 : 0;
}

/* The next item, 0 behind the last. */
static uint32_t after(const struct reading *in, uint32_t list, uint32_t item)
{
    uint32_t next = in->json.tokens[item].next;
    return next < in->json.tokens[list].next ? next : 0;
}

static void all_of(struct reading *in, uint32_t list, char kind)
{
    for (uint32_t item = first(in, list); item; item = after(in, list, item))
        in->odd = in->odd || in->json.tokens[item].kind != kind;
}

bool cdi_state(const char *text, size_t size, struct cdi_container *container)
{
    struct reading in = {.odd = false};
    char number[16] = "0";

    if (json_parse(text, size, &in.json) < 0)
        return false;
    uint32_t bundle = typed(&in, 0, "bundle", '"'), pid = json_get(&in.json, 0, "pid", &in.odd);
    uint32_t id = json_get(&in.json, 0, "id", &in.odd);
    const struct json_token *token = &in.json.tokens[pid];
    if (pid && token->kind == '0' && token->end - token->start < 8)
        snprintf(number, sizeof(number), "%.*s", (int)(token->end - token->start), text + token->start);
    else if (pid)
        in.odd = true;
    container->pid = atoi(number);
    bool read = !in.odd && strspn(number, "0123456789") == strlen(number) && container->pid <= PID_MAX &&
                bundle && json_text(&in.json, bundle, container->bundle, sizeof(container->bundle)) &&
                container->bundle[0] == '/';
    container->named = !id || json_text(&in.json, id, container->id, sizeof(container->id));
    json_free(&in.json);
    return read;
}

/* Whether variables may ask for slices. */
static bool asks(struct reading *in, uint32_t environment)
{
    bool found = false;

    for (uint32_t item = first(in, environment); item; item = after(in, environment, item)) {
        const struct json_token *token = &in->json.tokens[item];
        const char *start = in->json.text + token->start;
        size_t length = token->end - token->start;
        const char *equals = memchr(start, '=', length);
        if (token->kind != '"' || memchr(start, '\\', equals ? (size_t)(equals - start) : length))
            in->odd = true;
        for (size_t i = 0; i < VARIABLE_COUNT; i++)
            found = found ||
                    ((VARIABLES[i].asks & FOR_SLICE) && json_begins(&in->json, item, VARIABLES[i].name));
    }
    return found;
}

/* Whether a variable of this name is among those that were copied. */
static bool is_copied(const char *variables, const char *name, size_t length)
{
    for (const char *at = variables; at; at = strchr(at, '\1'), at = at ? at + 1 : NULL)
        if (!strncmp(at, name, length))
            return true;
    return false;
}

/* Copies the variables that are read; one that is set twice, or has anything but printable ASCII, is odd. */
static void copy_variables(struct reading *in, uint32_t environment, char *out)
{
    size_t used = 0;

    out[0] = '\0';
    for (uint32_t item = first(in, environment); item && !in->odd; item = after(in, environment, item)) {
        const struct json_token *token = &in->json.tokens[item];
        const char *start = in->json.text + token->start;
        size_t length = token->end - token->start;
        const char *equals = memchr(start, '=', length);
        bool read = false;
        for (size_t i = 0; i < VARIABLE_COUNT; i++)
            read = read || json_begins(&in->json, item, VARIABLES[i].name);
        if (!equals || !read)
            continue;
        in->odd = is_copied(out, start, (size_t)(equals - start) + 1) ||
                  !json_text(&in->json, item, out + used, CDI_VARIABLES_MAX - used - 1);
        if (in->odd)
            break;
        used += length;
        strcpy(out + used++, "\1");
    }
}

/* Whether a list has a word; one with an escape is odd. */
static bool has_word(struct reading *in, uint32_t list, const char *word)
{
    bool found = false;

    for (uint32_t item = first(in, list); item; item = after(in, list, item)) {
        const struct json_token *token = &in->json.tokens[item];
        in->odd = in->odd || token->kind != '"' ||
                  memchr(in->json.text + token->start, '\\', token->end - token->start);
        found = found || json_is(&in->json, item, word);
    }
    return found;
}

/* What mounts could ask by is part of their destinations: nvidia-container-devices of nvc/request/environment.py. */
static bool mounts_are_plain(const struct reading *in, uint32_t mounts)
{
    static const char name[] = "nvidia-container-devices";
    const struct json_token *token = &in->json.tokens[mounts];
    const char *start = in->json.text + token->start;

    return !mounts || (!memmem(start, token->end - token->start, name, strlen(name)) &&
                       !memchr(start, '\\', token->end - token->start));
}

/* Whether hooks make slices: a word --slice=... behind the word of that step. */
static bool is_sliced(struct reading *in)
{
    uint32_t hooks = json_get(&in->json, 0, "hooks", &in->odd);
    uint32_t list = typed(in, hooks, "createContainer", '[');
    size_t entries = 0;
    bool found = false;

    for (uint32_t item = hooks ? first(in, list) : 0; item; item = after(in, list, item)) {
        uint32_t words = typed(in, item, "args", '[');
        bool at = false;
        for (uint32_t word = first(in, words); word; word = after(in, words, word)) {
            const struct json_token *token = &in->json.tokens[word];
            if (token->kind != '"' || memchr(in->json.text + token->start, '\\', token->end - token->start))
                in->odd = true;
            else if (!json_begins(&in->json, word, "-"))
                at = json_is(&in->json, word, "slice-memory");
            else
                found = found || (at && json_begins(&in->json, word, "--slice="));
        }
        in->odd = in->odd || ++entries > HOOKS_MAX;
    }
    return found;
}

/* Sees that the rest of what Python looks at is as it should be. */
static void check(struct reading *in, uint32_t process, uint32_t linux_table,
                  struct cdi_container *container)
{
    uint32_t capabilities = json_get(&in->json, process, "capabilities", &in->odd);

    if (capabilities && in->json.tokens[capabilities].kind == '{')
        capabilities = typed(in, capabilities, "bounding", '[');
    else
        capabilities = typed(in, process, "capabilities", '[');
    container->privileged = has_word(in, capabilities, "CAP_SYS_ADMIN");
    if (linux_table)
        typed(in, linux_table, "mountLabel", '"');
    uint32_t mounts = typed(in, 0, "mounts", '[');
    container->plain = mounts_are_plain(in, mounts);
    all_of(in, mounts, '{');
    for (uint32_t item = first(in, mounts); item && !in->odd; item = after(in, mounts, item)) {
        typed(in, item, "source", '"');
        typed(in, item, "destination", '"');
    }
    uint32_t annotations = typed(in, 0, "annotations", '{');
    for (uint32_t key = first(in, annotations); key; key = after(in, annotations, key + 1))
        in->odd = in->odd || in->json.tokens[key + 1].kind != '"';
}

bool cdi_config(const char *text, size_t size, struct cdi_container *container)
{
    struct reading in = {.odd = false};
    char path[PATH_MAX], version[64];

    if (json_parse(text, size, &in.json) < 0)
        return false;
    uint32_t process = typed(&in, 0, "process", '{'), root = typed(&in, 0, "root", '{');
    uint32_t linux_table = typed(&in, 0, "linux", '{'), given = root ? typed(&in, root, "path", '"') : 0;
    bool read =
        process && given && json_text(&in.json, given, path, sizeof(path)) && path[0] &&
        json_text(&in.json, json_get(&in.json, 0, "ociVersion", &in.odd), version, sizeof(version)) &&
        version[0];
    if (read) {
        container->asks = asks(&in, typed(&in, process, "env", '['));
        container->sliced = is_sliced(&in);
        check(&in, process, linux_table, container);
        if (container->variables)
            copy_variables(&in, typed(&in, process, "env", '['), container->variables);
        snprintf(container->rootfs_path, sizeof(container->rootfs_path), "%s%s%s",
                 path[0] == '/' ? "" : container->bundle, path[0] == '/' ? "" : "/", path);
    }
    json_free(&in.json);
    return read && !in.odd;
}

bool cdi_bundle(struct cdi_container *container)
{
    char path[PATH_MAX];
    struct buffer text = {.bytes = NULL};
    struct stat st;

    if (snprintf(path, sizeof(path), "%s/config.json", container->bundle) >= PATH_MAX)
        return false;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool read = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && buffer_read(&text, fd, CONFIG_MAX) &&
                cdi_config(text.bytes, text.size, container);
    close(fd);
    free(text.bytes);
    return read;
}
