#ifndef NVC_BPF_H
#define NVC_BPF_H
#include <stdint.h>

/* bpf(2) for device programs of cgroup v2. Each returns 0 or a descriptor (close-on-exec), or -errno.
 * RLIMIT_MEMLOCK needs no care: since 5.11 the memory of programs is charged to the memory cgroup. */

struct nvc_bpf_program {
    uint32_t id;
    uint32_t size;     /* bytes of translated instructions, 0 when the kernel withholds their length */
    uint64_t tag;      /* hash of the instructions as they were loaded */
    uint32_t withheld; /* 1: the kernel did not copy the instructions (hardened program, no CAP_SYSLOG) */
};

struct nvc_bpf_link {
    uint32_t is_cgroup_device; /* 1: the fields below say where; 0: another kind of link */
    uint32_t program;
    uint64_t cgroup; /* inode number of the cgroup's directory */
};

/* Ids of the device programs attached to the directory `cgroup`, or with `effective` of all that are asked for
 * it. `count` is the room on entry, the number there is on return, also with -ENOSPC. */
int nvc_bpf_query(int cgroup, int effective, uint32_t *ids, uint32_t *count, uint32_t *attach_flags);
int nvc_bpf_program_open(uint32_t id);
int nvc_bpf_program_info(int program, struct nvc_bpf_program *info, void *instructions, uint32_t room);
/* `log` may be null; else the verifier's text, NUL-terminated. `size` is in bytes. */
int nvc_bpf_load(uint32_t type, const char *name, const char *license, const void *instructions,
                 uint32_t size, char *log, uint32_t log_size);
/* The same for a device program. */
int nvc_bpf_program_load(const void *instructions, uint32_t size, char *log, uint32_t log_size);
/* `replaced` is a program's descriptor, or -1 without BPF_F_REPLACE in `flags`. */
int nvc_bpf_attach(int cgroup, int program, uint32_t flags, int replaced);
int nvc_bpf_link_next(uint32_t *id);
int nvc_bpf_link_open(uint32_t id);
int nvc_bpf_link_info(int link, struct nvc_bpf_link *info);
/* Fails with -EPERM when the link no longer holds `old`. */
int nvc_bpf_link_update(int link, int program, int old);

#endif
