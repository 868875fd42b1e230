#ifndef NVC_BPF_CALL_H
#define NVC_BPF_CALL_H

#include <linux/bpf.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The kernel wants zeros in all bytes that a command does not use. */
#define BPF_ATTR(name)                                                                                      \
    union bpf_attr name;                                                                                    \
    memset(&name, 0, sizeof(name))

/* bpf(2), tried again when a signal interrupts it. A result, or -errno. */
int nvc_bpf(int command, union bpf_attr *attr);

/* A name that is too long is cut. */
void nvc_bpf_name(char *to, size_t room, const char *name);

static inline uint64_t nvc_bpf_address(const void *pointer)
{
    return (uint64_t)(uintptr_t)pointer;
}

#endif
