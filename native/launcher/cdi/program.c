/* From records of steps to a program for the applier, as nvc/apply/program.py makes one of a plan. */
#include "cdi.h"

#include <fcntl.h>
#include <linux/mount.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DATA (MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC)
#define CACHE "/etc/ld.so.cache"

static bool append(struct cdi_program *p, const void *bytes, size_t size)
{
    if (p->room - p->size < size) {
        size_t room = 2 * p->room + size + 4096;
        uint8_t *larger = realloc(p->bytes, room);
        if (!larger)
            return false;
        p->bytes = larger;
        p->room = room;
    }
    memcpy(p->bytes + p->size, bytes, size);
    p->size += size;
    return true;
}

static bool operation(struct cdi_program *p, struct nvc_op_header head, const char *target,
                      const char *first)
{
    head.target_length = (uint32_t)strlen(target);
    head.first_length = (uint32_t)strlen(first);
    return append(p, &head, sizeof(head)) && append(p, target, head.target_length + 1) &&
           append(p, first, head.first_length + 1);
}

static bool tmpfs(struct cdi_program *p, const char *target, const char *name, const char *content)
{
    return operation(p, (struct nvc_op_header){.kind = NVC_OP_TMPFS, .fd = -1}, target, "") &&
           operation(p, (struct nvc_op_header){.kind = NVC_OP_TMPFS_FILE, .fd = -1}, name, content) &&
           operation(p, (struct nvc_op_header){.kind = NVC_OP_ATTACH, .fd = -1, .attributes = DATA}, target,
                     "");
}

static bool add_bind(struct cdi_program *p, int fd, bool directory, uint64_t attributes, const char *target)
{
    struct nvc_op_header head = {.kind = NVC_OP_BIND,
                                 .flags = directory ? NVC_BIND_DIRECTORY : 0,
                                 .fd = fd,
                                 .attributes = attributes};

    return operation(p, head, target, "");
}

static bool add_link(struct cdi_program *p, const char *text, const char *target)
{
    return operation(p, (struct nvc_op_header){.kind = NVC_OP_SYMLINK, .fd = -1}, target, text);
}

static bool add_warning(struct cdi_program *p, const char *text)
{
    const char **larger = realloc(p->warnings, (p->warning_count + 1) * sizeof(*larger));

    if (!larger)
        return false;
    p->warnings = larger;
    p->warnings[p->warning_count++] = text;
    return true;
}

/* The source is opened once, and checked on the descriptor. */
static bool bind_proc(struct cdi_program *p, const char *path, bool directory)
{
    int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    struct stat st;

    if (root < 0)
        return false;
    int fd = cdi_open_below(root, path, O_PATH | O_NOFOLLOW);
    close(root);
    return fd >= 0 && fstat(fd, &st) == 0 && (directory ? S_ISDIR(st.st_mode) : S_ISREG(st.st_mode)) &&
           add_bind(p, fd, directory, DATA | MOUNT_ATTR_RDONLY, path);
}

static uint32_t flags_of(const char *arch)
{
    return !strcmp(arch, "x86_64")    ? 0x0303
           : !strcmp(arch, "i386")    ? 0x0003
           : !strcmp(arch, "aarch64") ? 0x0a03
                                      : 0x0903;
}

static bool entry(struct cdi_program *entries, const char *soname, const char *path, const char *arch)
{
    uint32_t flags = flags_of(arch);
    return append(entries, &flags, sizeof(flags)) && append(entries, soname, strlen(soname) + 1) &&
           append(entries, path, strlen(path) + 1);
}

/* Entries of the loader cache are one operation, the last. */
static bool loader_cache(struct cdi_program *p, const struct cdi_program *entries)
{
    struct nvc_op_header head = {.kind = NVC_OP_LDCACHE,
                                 .fd = -1,
                                 .target_length = sizeof(CACHE) - 1,
                                 .first_length = (uint32_t)entries->size};

    return entries->size == 0 || (append(p, &head, sizeof(head)) && append(p, CACHE, sizeof(CACHE)) &&
                                  append(p, entries->bytes, entries->size) && append(p, "", 1));
}

static bool take(struct cdi_program *p, struct cdi_program *entries, char kind, const char *const text[3])
{
    switch (kind) {
    case NVC_STEPS_TMPFS:
        return tmpfs(p, text[0], text[1], text[2]);
    case NVC_STEPS_BIND:
        return bind_proc(p, text[0], text[1][0] == 'd');
    case NVC_STEPS_LINK:
        return add_link(p, text[0], text[1]);
    case NVC_STEPS_ENTRY:
        return entry(entries, text[0], text[1], text[2]);
    default:
        return add_warning(p, text[0]);
    }
}

bool cdi_program(const uint8_t *records, size_t size, struct cdi_program *program)
{
    struct cdi_program entries = {.size = 0};
    bool made = true;

    for (size_t at = 0; made && at < size;) {
        const char *text[3] = {NULL};
        char kind = (char)records[at++];
        int fields = kind == NVC_STEPS_TMPFS || kind == NVC_STEPS_ENTRY ? 3
                     : kind == NVC_STEPS_WARNING                        ? 1
                                                                        : 2;
        for (int i = 0; i < fields; i++) {
            text[i] = (const char *)records + at;
            at += strlen(text[i]) + 1;
        }
        made = take(program, &entries, kind, text);
    }
    made = made && loader_cache(program, &entries);
    free(entries.bytes);
    return made;
}
