/* The device rules of a start that is done again, on cgroup v2: the one device program of the container's own cgroup is
 * replaced by itself behind the instructions that allow our devices, as nvc/cgroup does it. All else (version 1, several
 * programs, one of an ancestor or held by a link, one that is hidden or does what is not known here) is Python's. */
#include "bpf.h"
#include "cdi.h"
#include "files.h"
#include "replay.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/bpf.h>
#include <linux/magic.h>
#include <linux/openat2.h>
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
#define CONTEXT 12 /* bytes of struct bpf_cgroup_dev_ctx */
#define BIT_OF(register) (1u << (register))

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

    if (fd >= 0)
        close(fd);
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
        found = nvc_openat2(table, path, O_RDONLY | O_DIRECTORY, 0, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS);
    if (found >= 0 && (fstat(found, &st) < 0 || st.st_dev != top.st_dev)) {
        close(found);
        found = -1;
    }
    if (table >= 0)
        close(table);
    return found;
}

/* Whether a dump means the same when it is loaded again: `reloadable` of nvc/cgroup/program.py, and no register of the
 * kernel's own. */
static bool is_reloadable(const struct code *code)
{
    for (size_t i = 0; i < code->count; i++) {
        const struct bpf_insn *one = &code->list[i];
        unsigned kind = one->code & 7, operation = one->code & 0xf0;
        if (one->dst_reg > 10 || one->src_reg > 10)
            return false;
        if (kind == BPF_LD) {
            const struct bpf_insn *next = one + 1;
            if (one->code != (BPF_LD | BPF_IMM | BPF_DW) || one->src_reg || ++i == code->count ||
                next->code || next->dst_reg || next->src_reg || next->off)
                return false;
        } else if (kind == BPF_LDX || kind == BPF_ST || kind == BPF_STX) {
            if ((one->code & 0xe0) != BPF_MEM)
                return false;
        } else if (kind == BPF_ALU || kind == BPF_ALU64) {
            bool moves = operation == BPF_MOV;
            if (operation > BPF_END ||
                (moves && one->off && one->off != 8 && one->off != 16 && one->off != 32))
                return false;
        } else if (operation > BPF_JSLE || operation == BPF_CALL ||
                   (operation == BPF_EXIT && one->code != (BPF_JMP | BPF_EXIT))) {
            return false;
        }
    }
    return code->count > 0;
}

/* Whether a conditional jump is taken: 1 or 0, -1 for one that is not known here. */
static int taken(unsigned operation, uint64_t left, uint64_t right)
{
    switch (operation) {
    case BPF_JEQ:
        return left == right;
    case BPF_JNE:
        return left != right;
    case BPF_JLT:
        return left < right;
    case BPF_JLE:
        return left <= right;
    case BPF_JGT:
        return left > right;
    case BPF_JGE:
        return left >= right;
    case BPF_JSET:
        return (left & right) != 0;
    default:
        return -1;
    }
}

/* A result in `out`; false for an operation that is not known here. */
static bool computed(unsigned operation, bool wide, uint64_t left, uint64_t right, uint64_t *out)
{
    uint64_t mask = wide ? ~0ULL : 0xffffffff;

    left &= mask;
    right &= mask;
    switch (operation) {
    case BPF_MOV:
        *out = right;
        return true;
    case BPF_AND:
        *out = left & right;
        return true;
    case BPF_OR:
        *out = (left | right) & mask;
        return true;
    case BPF_RSH:
        *out = left >> (right & (wide ? 63 : 31));
        return true;
    case BPF_LSH:
        *out = (left << (right & (wide ? 63 : 31))) & mask;
        return true;
    default:
        return false;
    }
}

/* What the program answers: 1 allows, 0 denies, -1 where it does what is not known here. Jumps go forward only. */
static int answer_to(const struct code *code, const uint8_t context[CONTEXT])
{
    uint64_t registers[11] = {0};
    uint32_t numbers = 0, pointer = BIT_OF(1); /* which registers hold a number, and which the context */

    for (size_t at = 0; at < code->count; at++) {
        const struct bpf_insn *one = &code->list[at];
        unsigned kind = one->code & 7, operation = one->code & 0xf0;
        bool by_register = one->code & BPF_X, number = numbers & BIT_OF(one->dst_reg);
        bool operand = !by_register || (numbers & BIT_OF(one->src_reg));
        uint64_t right = by_register ? registers[one->src_reg] : (uint64_t)(int64_t)one->imm;
        if (kind == BPF_LDX) {
            size_t width = (one->code & 0x18) == BPF_W ? 4 : (one->code & 0x18) == BPF_H ? 2 : 1;
            if ((one->code & 0x18) == BPF_DW || !(pointer & BIT_OF(one->src_reg)) || one->off < 0 ||
                (size_t)one->off + width > CONTEXT)
                return -1;
            registers[one->dst_reg] = 0;
            memcpy(&registers[one->dst_reg], context + one->off, width);
        } else if (kind == BPF_ALU || kind == BPF_ALU64) {
            bool moves = operation == BPF_MOV;
            if (one->off || !operand || (!number && !moves) ||
                !computed(operation, kind == BPF_ALU64, registers[one->dst_reg], right,
                          &registers[one->dst_reg]))
                return -1;
        } else if (one->code == (BPF_JMP | BPF_EXIT)) {
            return numbers & BIT_OF(0) ? (uint32_t)registers[0] == 1 : -1;
        } else if (kind == BPF_JMP || kind == BPF_JMP32) {
            uint64_t mask = kind == BPF_JMP ? ~0ULL : 0xffffffff;
            int goes = one->code == (BPF_JMP | BPF_JA) ? 1
                       : number && operand ? taken(operation, registers[one->dst_reg] & mask, right & mask)
                                           : -1;
            if (goes < 0 || one->off < 0)
                return -1;
            at += goes ? (size_t)one->off : 0;
            continue;
        } else {
            return -1;
        }
        numbers |= BIT_OF(one->dst_reg);
        pointer &= ~BIT_OF(one->dst_reg);
    }
    return -1;
}

/* Whether the program allows every way to open the devices: 1 or 0, -1 where that is not told. */
static int allows(const struct code *code, const char *rules)
{
    static const uint32_t openings[] = {6, 2, 4}; /* O_RDWR, O_RDONLY, O_WRONLY */
    unsigned major, minor;
    int length;

    for (; sscanf(rules, "%u:%u%n", &major, &minor, &length) == 2; rules += length)
        for (size_t i = 0; i < sizeof(openings) / sizeof(openings[0]); i++) {
            uint32_t words[CONTEXT / 4] = {openings[i] << 16 | BPF_DEVCG_DEV_CHAR, major, minor};
            int answer = answer_to(code, (const uint8_t *)words);
            if (answer != 1)
                return answer;
        }
    return *rules ? -1 : 1;
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
    return is_reloadable(code);
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

/* With the cgroup open. */
static bool prepare(const char *rules, const char *digits, struct replay_change *change)
{
    uint32_t id, count, flags;
    struct code block = {.list = malloc(strlen(digits) + sizeof(struct bpf_insn))};
    struct code code = {.list = malloc(INSTRUCTIONS_MAX * sizeof(struct bpf_insn))};

    if (!block.list || !code.list || !one_program(change->cgroup, true, &id, &count, &flags))
        return false;
    if (count == 0) /* nothing restricts it */
        return true;
    if (count != 1 || !one_program(change->cgroup, false, &id, &count, &flags) ||
        !(flags & BPF_F_ALLOW_MULTI) || !is_alone(change->cgroup, id))
        return false;
    change->old = nvc_bpf_program_open(id);
    if (change->old < 0 || !decode(digits, &block) || !read_program(change->old, &code))
        return false;
    int allowed = allows(&code, rules);
    if (allowed == 0)
        change->new = load(&block, &code);
    return allowed == 1 || change->new >= 0;
}

bool replay_rules(int proc, const char *rules, const char *block, struct replay_change *change)
{
    change->cgroup = open_group(proc);
    return change->cgroup >= 0 && prepare(rules, block, change);
}
