/* From options of steps to records: what is mounted first, then links, then the loader cache. */
#include "_steps.h"

#include "_ldcache.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

/* The flags of this machine's entries in a loader cache, without the kind of library. */
#ifdef __x86_64__
#define OWN_FLAGS 0x0300
#else
#define OWN_FLAGS 0x0a00
#endif
#define COMPAT "/usr/local/cuda/compat"
#define ENTRIES_MAX 1000 /* the applier takes 1024 in one program */
#define VERSION_MAX 64

struct nvc_steps *nvc_steps_new(int rootfs, int sliced)
{
    struct nvc_steps *s = calloc(1, sizeof(*s));
    struct utsname name;

    if (s == NULL)
        return NULL;
    s->rootfs = rootfs;
    s->sliced = sliced;
    s->root_mount = mount_of(s, rootfs);
    if (uname(&name) < 0)
        steps_fail(s, errno, "ask for the machine", "");
    else
        memcpy(s->machine, name.machine, sizeof(s->machine));
    return s;
}

void nvc_steps_free(struct nvc_steps *s)
{
    if (s == NULL)
        return;
    struct rows *all[] = {&s->links,    &s->folders, &s->compat, &s->entries,
                          &s->warnings, &s->foreign, &s->hidden};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        rows_free(all[i]);
    free(s->records.bytes);
    free(s->mountinfo.bytes);
    free(s);
}

const struct nvc_steps_failure *nvc_steps_failed(const struct nvc_steps *s)
{
    return &s->failure;
}

void nvc_steps_prefer(struct nvc_steps *s, const char *soname, const char *path)
{
    rows_add(s, &s->compat, soname, path, NULL);
}

void nvc_steps_hide(struct nvc_steps *s, const char *name)
{
    rows_add(s, &s->hidden, name, NULL, NULL);
}

const uint8_t *nvc_steps_records(const struct nvc_steps *s, size_t *size)
{
    *size = s->records.size;
    return (const uint8_t *)s->records.bytes;
}

/* An absolute path in the container whose last component is a name, without slashes at its end. */
static bool container_path(struct nvc_steps *s, const char *path, char out[NVC_STEPS_PATH])
{
    size_t length = strlen(path);

    if (path[0] != '/' || length >= NVC_STEPS_PATH) {
        steps_fail(s, EINVAL, "read option", path);
        return false;
    }
    while (length > 0 && path[length - 1] == '/')
        length--;
    memcpy(out, path, length);
    out[length] = '\0';
    const char *name = strrchr(out, '/');
    if (name == NULL || strcmp(name, "/.") == 0 || strcmp(name, "/..") == 0) {
        steps_fail(s, EINVAL, "read option", path);
        return false;
    }
    return true;
}

/* Whether what is at `target` is the file to which a link in `directory` would lead: it was mounted there, too. */
static bool is_same_file(struct nvc_steps *s, const char *directory, const char *text, const char *target)
{
    char path[NVC_STEPS_PATH];

    return steps_join(s, path, text[0] == '/' ? "" : directory, text) &&
           is_same_place(s, s->rootfs, path, target, 0);
}

/* Takes in a link if its place is free or has a link. */
void place_link(struct nvc_steps *s, const char *text, const char *target)
{
    char directory[NVC_STEPS_PATH];

    snprintf(directory, sizeof(directory), "%.*s", (int)(strrchr(target, '/') - target), target);
    if (is_foreign(s, directory)) {
        steps_warn(s, "%s: not made, it is on a read-only mount of the host", target);
        return;
    }
    if (kind_at(s, s->rootfs, target) == OTHER) {
        if (!is_same_file(s, directory, text, target))
            steps_warn(s, "%s: not made, the image has a file there", target);
        return;
    }
    for (size_t i = 0; i < s->links.count; i++)
        if (strcmp(s->links.at[i].b, target) == 0)
            return;
    rows_add(s, &s->links, text, target, NULL);
}

static void leave_link(struct nvc_steps *s, const char *text, const char *target)
{
    (void)s, (void)text, (void)target;
}

/* Splits TARGET::LINK. */
static void take_link(struct nvc_steps *s, const char *value,
                      void (*take)(struct nvc_steps *, const char *, const char *))
{
    char text[NVC_STEPS_PATH], path[NVC_STEPS_PATH];
    const char *colons = strstr(value, "::");
    size_t length = colons ? (size_t)(colons - value) : 0;

    if (length == 0 || length >= sizeof(text) || memchr(value, '\n', length)) {
        steps_fail(s, EINVAL, "read option", value);
        return;
    }
    snprintf(text, sizeof(text), "%.*s", (int)length, value);
    if (container_path(s, colons + 2, path))
        take(s, text, path);
}

static const char *last(const struct nvc_steps_option *options, size_t count, const char *name)
{
    const char *value = "";

    for (size_t i = 0; i < count; i++)
        if (strcmp(options[i].name, name) == 0)
            value = options[i].value;
    return value;
}

static void enable_compat(struct nvc_steps *s, const struct nvc_steps_option *options, size_t count)
{
    const char *version = last(options, count, "host-driver-version");
    const char *root = last(options, count, "cuda-compat-container-root");
    char directory[NVC_STEPS_PATH] = COMPAT;
    size_t length = strlen(version), figures = 0;

    for (const char *at = version; *at; at++) {
        bool figure = (*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z');
        figures += figure;
        if (!figure && *at != '.')
            figures = length = VERSION_MAX + 1;
    }
    if (figures == 0 || length > VERSION_MAX)
        steps_fail(s, EINVAL, "read option", version);
    if (*root && !container_path(s, root, directory))
        return;
    s->compat_asked = true;
    if (!s->sliced && !s->failed)
        nvc_steps_compat(s, version, last(options, count, "host-cuda-version"), directory, NULL, 0);
}

int nvc_steps_add(struct nvc_steps *s, const char *name, const struct nvc_steps_option *options,
                  size_t count)
{
    bool devices = strcmp(name, "create-device-links") == 0;
    char path[NVC_STEPS_PATH];

    if (strcmp(name, "create-symlinks") == 0 || devices) {
        void (*take)(struct nvc_steps *, const char *, const char *) = devices ? device_link : place_link;
        if (devices && !has_own_dev(s))
            take = leave_link;
        for (size_t i = 0; i < count && !s->failed; i++)
            take_link(s, options[i].value, take);
    } else if (strcmp(name, "update-ldcache") == 0 || strcmp(name, "create-soname-symlinks") == 0) {
        for (size_t i = 0; i < count; i++)
            if (strcmp(options[i].name, "folder") == 0 && container_path(s, options[i].value, path))
                rows_add(s, &s->folders, path, NULL, NULL);
    } else if (strcmp(name, "enable-cuda-compat") == 0) {
        enable_compat(s, options, count);
    } else if (strcmp(name, "disable-device-node-modification") == 0) {
        make_params(s);
    } else if (strcmp(name, "update-application-profile") == 0) {
        make_profile(s);
    } else {
        steps_fail(s, EINVAL, "find step", name);
    }
    return s->failed ? -1 : 0;
}

/* The directory named `compat` from which the loader takes libcuda now, or "". */
static void first_compat(struct nvc_steps *s, char directory[NVC_STEPS_PATH])
{
    struct buffer content = {.bytes = NULL};
    struct ldcache_view view = {.bytes = NULL};
    bool found = read_cache(s, &content, &view);

    directory[0] = '\0';
    for (size_t i = 0; found && i < view.count; i++) {
        const struct ldcache_record *record = &view.records[i];
        if (strcmp(record->name, "libcuda.so.1") != 0 || (record->flags & 0xff00) != OWN_FLAGS)
            continue;
        const char *slash = strrchr(record->path, '/');
        size_t length = slash ? (size_t)(slash - record->path) : 0;
        if (length >= 7 && length < NVC_STEPS_PATH && memcmp(slash - 7, "/compat", 7) == 0)
            snprintf(directory, NVC_STEPS_PATH, "%.*s", (int)length, record->path);
        break;
    }
    free(view.records);
    free(content.bytes);
}

/* The image's own first; of two of a SONAME the last, in the place of the first. */
static void record_entries(struct nvc_steps *s)
{
    size_t written = 0;

    for (size_t i = 0; i < s->compat.count && written < ENTRIES_MAX; i++) {
        const char *soname = s->compat.at[i].a, *path = s->compat.at[i].b;
        const struct rows before = {.at = s->compat.at, .count = i};
        for (size_t j = i + 1; j < s->compat.count; j++)
            if (strcmp(s->compat.at[j].a, soname) == 0)
                path = s->compat.at[j].b;
        if (!rows_have(&before, soname)) {
            steps_record(s, NVC_STEPS_ENTRY, soname, path, s->machine);
            written++;
        }
    }
    size_t own = s->entries.count < ENTRIES_MAX ? s->entries.count : ENTRIES_MAX;
    for (size_t i = 0; i < own && written < ENTRIES_MAX; i++) {
        const struct row *row = &s->entries.at[i];
        if (strcmp(row->c, s->machine) == 0 && rows_have(&s->compat, row->a))
            continue;
        steps_record(s, NVC_STEPS_ENTRY, row->a, row->b, row->c);
        written++;
    }
}

int nvc_steps_finish(struct nvc_steps *s)
{
    char version[NVC_STEPS_PATH] = "", directory[NVC_STEPS_PATH];

    if (s->folders.count && !s->failed)
        find_libraries(s, version);
    if (s->folders.count && !s->failed)
        place_libraries(s);
    if (s->folders.count && !s->compat_asked && !s->sliced && version[0] && !s->failed) {
        /* In a call of its own, enable-cuda-compat has put its entries first already: there they stay. */
        first_compat(s, directory);
        if (directory[0])
            nvc_steps_compat(s, version, "", directory, NULL, 0);
    }
    for (size_t i = 0; i < s->links.count; i++)
        steps_record(s, NVC_STEPS_LINK, s->links.at[i].a, s->links.at[i].b, NULL);
    record_entries(s);
    for (size_t i = 0; i < s->warnings.count; i++)
        steps_record(s, NVC_STEPS_WARNING, s->warnings.at[i].a, NULL, NULL);
    return s->failed ? -1 : 0;
}
