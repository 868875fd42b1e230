/* bpf(2), and what the launcher does with it: query, dump, load and replace device programs of cgroup v2. */
#include "bpf.h"

#include <errno.h>
#include <linux/bpf.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

_Static_assert(sizeof(struct bpf_insn) == 8, "an instruction has 8 bytes");

/* The kernel wants zeros in all bytes that a command does not use. */
#define BPF_ATTR(name)                                                                                      \
    union bpf_attr name;                                                                                    \
    memset(&name, 0, sizeof(name))
#define CALL(command, attr) nvc_bpf(command, &(attr), sizeof(attr))

static uint64_t address(const void *pointer)
{
    return (uint64_t)(uintptr_t)pointer;
}

int nvc_bpf(int command, void *attr, uint32_t size)
{
    long result;
    int tries = 0;

    /* BPF_PROG_LOAD gives EAGAIN when a signal interrupts the verifier. */
    do
        result = syscall(SYS_bpf, command, attr, size);
    while (result < 0 && (errno == EINTR || errno == EAGAIN) && ++tries < 8);
    return result < 0 ? -errno : (int)result;
}

int nvc_bpf_query(int cgroup, int effective, uint32_t *ids, uint32_t *count, uint32_t *attach_flags)
{
    BPF_ATTR(attr);
    attr.query.target_fd = (uint32_t)cgroup;
    attr.query.attach_type = BPF_CGROUP_DEVICE;
    attr.query.query_flags = effective ? BPF_F_QUERY_EFFECTIVE : 0;
    attr.query.prog_ids = address(ids);
    attr.query.prog_cnt = *count;
    int result = CALL(BPF_PROG_QUERY, attr);
    *count = attr.query.prog_cnt;
    *attach_flags = attr.query.attach_flags;
    return result;
}

int nvc_bpf_program_open(uint32_t id)
{
    BPF_ATTR(attr);
    attr.prog_id = id;
    return CALL(BPF_PROG_GET_FD_BY_ID, attr);
}

int nvc_bpf_program_info(int program, struct nvc_bpf_program *info, void *instructions, uint32_t room)
{
    struct bpf_prog_info reply;

    memset(&reply, 0, sizeof(reply));
    reply.xlated_prog_insns = address(instructions);
    reply.xlated_prog_len = room;
    /* The part that every kernel since 4.15 knows; the rest is of no interest. */
    BPF_ATTR(attr);
    attr.info.bpf_fd = (uint32_t)program;
    attr.info.info_len = offsetof(struct bpf_prog_info, ifindex);
    attr.info.info = address(&reply);
    int result = CALL(BPF_OBJ_GET_INFO_BY_FD, attr);
    if (result < 0)
        return result;
    info->id = reply.id;
    info->size = reply.xlated_prog_len;
    memcpy(&info->tag, reply.tag, sizeof(info->tag));
    /* The kernel says so by clearing the pointer and leaves the buffer as it was. */
    info->withheld = reply.xlated_prog_len == 0 || (room > 0 && reply.xlated_prog_insns == 0);
    return 0;
}

int nvc_bpf_program_load(const void *instructions, uint32_t size, char *log, uint32_t log_size)
{
    BPF_ATTR(attr);
    attr.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE;
    attr.insns = address(instructions);
    attr.insn_cnt = size / sizeof(struct bpf_insn);
    attr.license = address("Apache-2.0");
    memcpy(attr.prog_name, "nvc_devices", sizeof("nvc_devices"));
    if (log != NULL && log_size > 0) {
        log[0] = '\0';
        attr.log_buf = address(log);
        attr.log_size = log_size;
        attr.log_level = 1;
    }
    return CALL(BPF_PROG_LOAD, attr);
}

int nvc_bpf_attach(int cgroup, int program, uint32_t flags, int replaced)
{
    BPF_ATTR(attr);
    attr.target_fd = (uint32_t)cgroup;
    attr.attach_bpf_fd = (uint32_t)program;
    attr.attach_type = BPF_CGROUP_DEVICE;
    attr.attach_flags = flags;
    if (replaced >= 0)
        attr.replace_bpf_fd = (uint32_t)replaced;
    return CALL(BPF_PROG_ATTACH, attr);
}
