/* bpf(2) for the device programs of cgroup v2: query, dump, load, replace. */
#include "bpf.h"
#include "_bpf.h"

#include <errno.h>
#include <linux/bpf.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

_Static_assert(sizeof(struct bpf_insn) == 8, "an instruction has 8 bytes");

int nvc_bpf(int command, union bpf_attr *attr)
{
    long result;
    int tries = 0;

    /* BPF_PROG_LOAD gives EAGAIN when a signal interrupts the verifier. */
    do
        result = syscall(SYS_bpf, command, attr, sizeof(*attr));
    while (result < 0 && (errno == EINTR || errno == EAGAIN) && ++tries < 8);
    return result < 0 ? -errno : (int)result;
}

int nvc_bpf_query(int cgroup, int effective, uint32_t *ids, uint32_t *count, uint32_t *attach_flags)
{
    BPF_ATTR(attr);
    attr.query.target_fd = (uint32_t)cgroup;
    attr.query.attach_type = BPF_CGROUP_DEVICE;
    attr.query.query_flags = effective ? BPF_F_QUERY_EFFECTIVE : 0;
    attr.query.prog_ids = nvc_bpf_address(ids);
    attr.query.prog_cnt = *count;
    int result = nvc_bpf(BPF_PROG_QUERY, &attr);
    *count = attr.query.prog_cnt;
    *attach_flags = attr.query.attach_flags;
    return result;
}

int nvc_bpf_program_open(uint32_t id)
{
    BPF_ATTR(attr);
    attr.prog_id = id;
    return nvc_bpf(BPF_PROG_GET_FD_BY_ID, &attr);
}

static int object_info(int object, void *info, uint32_t size)
{
    BPF_ATTR(attr);
    attr.info.bpf_fd = (uint32_t)object;
    attr.info.info_len = size;
    attr.info.info = nvc_bpf_address(info);
    return nvc_bpf(BPF_OBJ_GET_INFO_BY_FD, &attr);
}

int nvc_bpf_program_info(int program, struct nvc_bpf_program *info, void *instructions, uint32_t room)
{
    struct bpf_prog_info reply;
    int result;

    memset(&reply, 0, sizeof(reply));
    reply.xlated_prog_insns = nvc_bpf_address(instructions);
    reply.xlated_prog_len = room;
    /* The part that every kernel since 4.15 knows; the rest is of no interest. */
    result = object_info(program, &reply, offsetof(struct bpf_prog_info, ifindex));
    if (result < 0)
        return result;
    info->id = reply.id;
    info->size = reply.xlated_prog_len;
    memcpy(&info->tag, reply.tag, sizeof(info->tag));
    /* The kernel says so by clearing the pointer and leaves the buffer as it was. */
    info->withheld = reply.xlated_prog_len == 0 || (room > 0 && reply.xlated_prog_insns == 0);
    return 0;
}

void nvc_bpf_name(char *to, size_t room, const char *name)
{
    size_t length = strnlen(name, room - 1);

    memcpy(to, name, length);
    to[length] = '\0';
}

int nvc_bpf_load(uint32_t type, const char *name, const char *license, const void *instructions,
                 uint32_t size, char *log, uint32_t log_size)
{
    BPF_ATTR(attr);
    attr.prog_type = type;
    attr.insns = nvc_bpf_address(instructions);
    attr.insn_cnt = size / sizeof(struct bpf_insn);
    attr.license = nvc_bpf_address(license);
    nvc_bpf_name(attr.prog_name, sizeof(attr.prog_name), name);
    if (log != NULL && log_size > 0) {
        log[0] = '\0';
        attr.log_buf = nvc_bpf_address(log);
        attr.log_size = log_size;
        attr.log_level = 1;
    }
    return nvc_bpf(BPF_PROG_LOAD, &attr);
}

int nvc_bpf_program_load(const void *instructions, uint32_t size, char *log, uint32_t log_size)
{
    return nvc_bpf_load(BPF_PROG_TYPE_CGROUP_DEVICE, "nvc_devices", "Apache-2.0", instructions, size, log,
                        log_size);
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
    return nvc_bpf(BPF_PROG_ATTACH, &attr);
}

int nvc_bpf_link_next(uint32_t *id)
{
    BPF_ATTR(attr);
    attr.start_id = *id;
    int result = nvc_bpf(BPF_LINK_GET_NEXT_ID, &attr);
    *id = attr.next_id;
    return result;
}

int nvc_bpf_link_open(uint32_t id)
{
    BPF_ATTR(attr);
    attr.link_id = id;
    return nvc_bpf(BPF_LINK_GET_FD_BY_ID, &attr);
}

int nvc_bpf_link_info(int link, struct nvc_bpf_link *info)
{
    struct bpf_link_info reply;
    int result;

    memset(info, 0, sizeof(*info));
    memset(&reply, 0, sizeof(reply));
    result = object_info(link, &reply, sizeof(reply));
    if (result < 0)
        return result;
    if (reply.type == BPF_LINK_TYPE_CGROUP && reply.cgroup.attach_type == BPF_CGROUP_DEVICE) {
        info->is_cgroup_device = 1;
        info->program = reply.prog_id;
        info->cgroup = reply.cgroup.cgroup_id;
    }
    return 0;
}

int nvc_bpf_link_update(int link, int program, int old)
{
    BPF_ATTR(attr);
    attr.link_update.link_fd = (uint32_t)link;
    attr.link_update.new_prog_fd = (uint32_t)program;
    attr.link_update.flags = BPF_F_REPLACE;
    attr.link_update.old_prog_fd = (uint32_t)old;
    return nvc_bpf(BPF_LINK_UPDATE, &attr);
}
