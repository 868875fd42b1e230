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

static bool operation(struct cdi_program *p, struct nvc_op_header head, const char *target,
                      const char *first)
{
    head.target_length = (uint32_t)strlen(target);
    head.first_length = (uint32_t)strlen(first);
    return buffer_add(&p->code, &head, sizeof(head)) &&
           buffer_add(&p->code, target, head.target_length + 1) &&
           buffer_add(&p->code, first, head.first_length + 1);
}

static bool tmpfs(struct cdi_program *p, const char *target, const char *name, const char *content)
{
    return operation(p, (struct nvc_op_header){.kind = NVC_OP_TMPFS, .fd = -1}, target, "") &&
           operation(p, (struct nvc_op_header){.kind = NVC_OP_TMPFS_FILE, .fd = -1}, name, content) &&
           operation(p, (struct nvc_op_header){.kind = NVC_OP_ATTACH, .fd = -1, .attributes = DATA}, target,
                     "");
}

/* The source is opened once, and checked on the descriptor. */
static bool bind_proc(struct cdi_program *p, const char *path, bool directory)
{
    int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    struct stat st;

    if (root < 0)
        return false;
    int fd = nvc_open_below(root, path, O_PATH | O_NOFOLLOW, 0);
    close(root);
    struct nvc_op_header head = {.kind = NVC_OP_BIND,
                                 .flags = directory ? NVC_BIND_DIRECTORY : 0,
                                 .fd = fd,
                                 .attributes = DATA | MOUNT_ATTR_RDONLY};
    return fd >= 0 && fstat(fd, &st) == 0 && (directory ? S_ISDIR(st.st_mode) : S_ISREG(st.st_mode)) &&
           operation(p, head, path, "");
}

static uint32_t flags_of(const char *arch)
{
    return !strcmp(arch, "x86_64")    ? 0x0303
           : !strcmp(arch, "i386")    ? 0x0003
           : !strcmp(arch, "aarch64") ? 0x0a03
                                      : 0x0903;
}

static bool entry(struct buffer *entries, const char *soname, const char *path, const char *arch)
{
    uint32_t flags = flags_of(arch);
    return buffer_add(entries, &flags, sizeof(flags)) && buffer_add(entries, soname, strlen(soname) + 1) &&
           buffer_add(entries, path, strlen(path) + 1);
}

/* Entries of the loader cache are one operation, the last. */
static bool loader_cache(struct buffer *code, const struct buffer *entries)
{
    struct nvc_op_header head = {.kind = NVC_OP_LDCACHE,
                                 .fd = -1,
                                 .target_length = sizeof(CACHE) - 1,
                                 .first_length = (uint32_t)entries->size};

    return entries->size == 0 ||
           (buffer_add(code, &head, sizeof(head)) && buffer_add(code, CACHE, sizeof(CACHE)) &&
            buffer_add(code, entries->bytes, entries->size) && buffer_add(code, "", 1));
}

static bool take(struct cdi_program *p, struct buffer *entries, char kind, const char *const text[3])
{
    switch (kind) {
    case NVC_STEPS_TMPFS:
        return tmpfs(p, text[0], text[1], text[2]);
    case NVC_STEPS_BIND:
        return bind_proc(p, text[0], text[1][0] == 'd');
    case NVC_STEPS_LINK:
        return operation(p, (struct nvc_op_header){.kind = NVC_OP_SYMLINK, .fd = -1}, text[1], text[0]);
    case NVC_STEPS_ENTRY:
        return entry(entries, text[0], text[1], text[2]);
    default:
        return buffer_add(&p->warnings, text[0], strlen(text[0]) + 1);
    }
}

bool cdi_program(const uint8_t *records, size_t size, struct cdi_program *program)
{
    struct buffer entries = {.bytes = NULL};
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
    made = made && loader_cache(&program->code, &entries);
    free(entries.bytes);
    return made;
}
