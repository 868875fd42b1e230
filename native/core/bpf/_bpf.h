#ifndef NVC_BPF_CALL_H
#define NVC_BPF_CALL_H

#include <linux/bpf.h>
#include <stdint.h>

/* bpf(2), tried again when a signal interrupts it. A result, or -errno. */
int nvc_bpf(int command, union bpf_attr *attr);

static inline uint64_t nvc_bpf_address(const void *pointer)
{
    return (uint64_t)(uintptr_t)pointer;
}

#endif
