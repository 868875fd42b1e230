#pragma once
#include <stdint.h>

/* bpf(2) for device programs of cgroup v2. Each returns 0 or a descriptor (close-on-exec), or -errno.
 * RLIMIT_MEMLOCK needs no care: since 5.11 the memory of programs is charged to the memory cgroup. */

struct nvc_bpf_program {
    uint32_t id;
    uint32_t size;     /* bytes of translated instructions, 0 when the kernel withholds their length */
    uint64_t tag;      /* hash of the instructions as they were loaded */
    uint32_t withheld; /* 1: the kernel did not copy the instructions (hardened program, no CAP_SYSLOG) */
};

/* A command with its structure, of which the kernel takes bytes that are missing for zeros; tried again when a signal
 * interrupts it. A result, or -errno. */
int nvc_bpf(int command, void *attr, uint32_t size);

/* Ids of the device programs attached to the directory `cgroup`, or with `effective` of all that are asked for
 * it. `count` is the room on entry, the number there is on return, also with -ENOSPC. */
int nvc_bpf_query(int cgroup, int effective, uint32_t *ids, uint32_t *count, uint32_t *attach_flags);
int nvc_bpf_program_open(uint32_t id);
int nvc_bpf_program_info(int program, struct nvc_bpf_program *info, void *instructions, uint32_t room);
/* Loads a device program. `log` may be null; else the verifier's text, NUL-terminated. `size` is in bytes. */
int nvc_bpf_program_load(const void *instructions, uint32_t size, char *log, uint32_t log_size);
/* `replaced` is a program's descriptor, or -1 without BPF_F_REPLACE in `flags`. */
int nvc_bpf_attach(int cgroup, int program, uint32_t flags, int replaced);
