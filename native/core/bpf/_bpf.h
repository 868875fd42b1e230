#ifndef NVC_BPF_CALL_H
#define NVC_BPF_CALL_H

#include <linux/bpf.h>
#include <stddef.h>
#include <stdint.h>

/* bpf(2), tried again when a signal interrupts it. A result, or -errno. */
int nvc_bpf(int command, union bpf_attr *attr);

/* Loads a program; see nvc_bpf_program_load. A name that is too long is cut. */
int nvc_bpf_load(uint32_t type, const char *name, const char *license, const void *instructions,
                 uint32_t size, char *log, uint32_t log_size);
void nvc_bpf_name(char *to, size_t room, const char *name);

static inline uint64_t nvc_bpf_address(const void *pointer)
{
    return (uint64_t)(uintptr_t)pointer;
}

#endif
