/* The device rules of a start that is done again, on cgroup v2: the one device program of the container's own cgroup is
 * replaced by itself behind the instructions that allow our devices, as nvc/apply/cgroup does it. By the kernel's tag it is one
 * that Python has judged. All else (version 1, several programs, one of an ancestor or held by a link, one that is hidden)
 * is Python's. */
#include "bpf.h"
#include "cdi/cdi.h"
#include "replay.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/bpf.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define INSTRUCTIONS_MAX 65536
#define ROOT_INODE 1 /* of the hierarchy's own root: no group below has it */
#define INITIAL_CGROUP_NAMESPACE 0xeffffffbu
#define INITIAL_USER_NAMESPACE 0xeffffffdu
#define TABLE "/sys/fs/cgroup"
#define REGISTERS 11 /* that programs may name */

struct code {
    struct bpf_insn *list;
    size_t count;
};

static bool is_namespace(const char *path, ino_t inode)
{
    struct stat st;

    return stat(path, &st) == 0 && st.st_ino == inode;
}

/* The path of the process's group of version 2, without the slash before it; false where a group of version 1 decides. */
static bool read_group(int proc, char path[PATH_MAX])
{
    char text[8192];
    bool found = false, other = false;
    char *rest = NULL;
    int fd = openat(proc, "cgroup", O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

    shut(fd);
    if (size <= 0 || size == sizeof(text) - 1)
        return false;
    text[size] = '\0';
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            return false;
        *group++ = '\0';
        if (!strcmp(line, "0:")) {
            found = group[0] == '/' && group[1] && !strstr(group, "/..") && strlen(group) < PATH_MAX;
            if (found)
                strcpy(path, group + 1);
        } else if (strstr(controllers + 1, "devices")) {
            other = other || strcmp(group, "/") != 0;
        }
    }
    return found && !other;
}

/* The directory of the process's cgroup, -1 where it cannot be had in the usual way. */
static int open_group(int proc)
{
    char path[PATH_MAX];
    struct stat top, st;
    struct statfs kind;
    int found = -1;

    if (!is_namespace("/proc/self/ns/cgroup", INITIAL_CGROUP_NAMESPACE) ||
        !is_namespace("/proc/self/ns/user", INITIAL_USER_NAMESPACE) || !read_group(proc, path))
        return -1;
    int table = open(TABLE, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (table >= 0 && fstatfs(table, &kind) == 0 && kind.f_type == CGROUP2_SUPER_MAGIC &&
        fstat(table, &top) == 0 && top.st_ino == ROOT_INODE)
        found = nvc_open_below(table, path, O_RDONLY | O_DIRECTORY, 0);
    if (found >= 0 && (fstat(found, &st) < 0 || st.st_dev != top.st_dev)) {
        close(found);
        found = -1;
    }
    shut(table);
    return found;
}

/* The instructions that stand before the program's own. */
static bool decode(const char *digits, struct code *code)
{
    size_t size = strlen(digits) / 2;
    uint8_t *bytes = (uint8_t *)code->list;

    if (strlen(digits) % 16 || size / sizeof(*code->list) > INSTRUCTIONS_MAX)
        return false;
    for (size_t i = 0; i < size; i++)
        if (sscanf(digits + 2 * i, "%2hhx", &bytes[i]) != 1)
            return false;
    code->count = size / sizeof(*code->list);
    return true;
}

static bool read_program(int program, struct code *code)
{
    struct nvc_bpf_program info;
    uint32_t room = INSTRUCTIONS_MAX * sizeof(*code->list);

    if (nvc_bpf_program_info(program, &info, code->list, room) < 0 || info.withheld || info.size > room ||
        info.size % sizeof(*code->list))
        return false;
    code->count = info.size / sizeof(*code->list);
    for (size_t i = 0; i < code->count; i++) /* the kernel hides constants behind a register of its own */
        if (code->list[i].dst_reg >= REGISTERS || code->list[i].src_reg >= REGISTERS)
            return false;
    return true;
}

/* The one program of a cgroup. `count` is 0 where there is none, 2 where there are more. */
static bool one_program(int cgroup, bool effective, uint32_t *id, uint32_t *count, uint32_t *flags)
{
    uint32_t ids[2] = {0};

    *count = 2;
    int result = nvc_bpf_query(cgroup, effective, ids, count, flags);
    *id = ids[0];
    return result == 0;
}

/* Whether the program with this identifier is the only one that is asked. */
static bool is_alone(int cgroup, uint32_t id)
{
    uint32_t own, all, count, flags;

    return one_program(cgroup, false, &own, &count, &flags) && count == 1 && own == id &&
           one_program(cgroup, true, &all, &count, &flags) && count == 1 && all == id;
}

static int load(const struct code *block, const struct code *code)
{
    size_t count = block->count + code->count;
    struct bpf_insn *all = malloc(count * sizeof(*all));

    if (!all)
        return -1;
    memcpy(all, block->list, block->count * sizeof(*all));
    memcpy(all + block->count, code->list, code->count * sizeof(*all));
    int program = nvc_bpf_program_load(all, (uint32_t)(count * sizeof(*all)), NULL, 0);
    free(all);
    return program;
}

bool replay_allow(struct replay_change *change)
{
    struct nvc_bpf_program info;

    if (change->new < 0)
        return true;
    if (nvc_bpf_program_info(change->new, &info, NULL, 0) < 0 ||
        nvc_bpf_attach(change->cgroup, change->new, BPF_F_ALLOW_MULTI | BPF_F_REPLACE, change->old) < 0)
        return false;
    if (is_alone(change->cgroup, info.id)) /* an engine may have attached another one meanwhile */
        return true;
    replay_disallow(change);
    return false;
}

void replay_disallow(struct replay_change *change)
{
    char warning[160];
    int result = change->new < 0 ? 0
                                 : nvc_bpf_attach(change->cgroup, change->old,
                                                  BPF_F_ALLOW_MULTI | BPF_F_REPLACE, change->new);

    change->new = -1;
    /* There is another one by now, or the cgroup is gone. */
    if (result == 0 || result == -ENOENT || result == -ENODEV)
        return;
    snprintf(warning, sizeof(warning), "undo device rules: %s: the container may still use its devices",
             strerror(-result));
    cdi_warn(change->name, warning);
}

bool replay_rules(int proc, char tag[REPLAY_TAG], struct replay_change *change)
{
    uint32_t id, count, flags;
    struct nvc_bpf_program info;

    change->cgroup = open_group(proc);
    if (change->cgroup < 0 || !one_program(change->cgroup, true, &id, &count, &flags))
        return false;
    strcpy(tag, "none"); /* nothing restricts it */
    if (count == 0)
        return true;
    if (count != 1 || !one_program(change->cgroup, false, &id, &count, &flags) ||
        !(flags & BPF_F_ALLOW_MULTI) || !is_alone(change->cgroup, id))
        return false;
    change->old = nvc_bpf_program_open(id);
    if (change->old < 0 || nvc_bpf_program_info(change->old, &info, NULL, 0) < 0)
        return false;
    snprintf(tag, REPLAY_TAG, "%016llx", (unsigned long long)info.tag);
    return true;
}

bool replay_load(const char *digits, struct replay_change *change)
{
    struct code block = {.list = malloc(strlen(digits) + sizeof(struct bpf_insn))};
    struct code code = {.list = malloc(INSTRUCTIONS_MAX * sizeof(struct bpf_insn))};

    if (!*digits)
        return true;
    if (change->old >= 0 && block.list && code.list && decode(digits, &block) &&
        read_program(change->old, &code))
        change->new = load(&block, &code);
    return change->new >= 0;
}
