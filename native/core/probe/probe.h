#ifndef NVC_PROBE_H
#define NVC_PROBE_H
#include <stddef.h>
#include <stdint.h>

#define NVC_PROBE_VERSION 1
#define NVC_PROBE_MAX_GPUS 64
#define NVC_PROBE_MAX_MIG 16
#define NVC_PROBE_STRING 96

/* Frame status. CONFINE: `code` is an errno; LOAD: `text` is dlerror(3)'s; NVML: `code` is an nvmlReturn_t and
 * `text` its name; TOO_MANY: `code` is the number of GPUs. `step` says what was tried. */
#define NVC_PROBE_OK 0
#define NVC_PROBE_CONFINE 1
#define NVC_PROBE_LOAD 2
#define NVC_PROBE_NVML 3
#define NVC_PROBE_TOO_MANY 4

/* Bits of nvc_probe_gpu.flags. */
#define NVC_PROBE_HAS_MINOR 1
#define NVC_PROBE_MIG_CAPABLE 2
#define NVC_PROBE_MIG_ENABLED 4

/* What the probe is to do with the ids: nothing, change them, or change them if they can be changed. */
#define NVC_PROBE_IDS_KEEP 0
#define NVC_PROBE_IDS_CHANGE 1
#define NVC_PROBE_IDS_TRY 2

/* Where a `status` that is not 0 stands, `uuid` holds the name of the failed call and `name` NVML's text. */
struct nvc_probe_mig {
    uint32_t index;
    int32_t status;
    uint32_t gpu_instance;
    uint32_t compute_instance;
    uint32_t memory; /* MiB; 0: not told */
    char uuid[NVC_PROBE_STRING];
};

struct nvc_probe_gpu {
    uint32_t index;
    int32_t status;
    uint32_t flags;
    uint32_t minor;
    uint32_t domain;
    uint32_t bus;
    uint32_t device;
    uint32_t brand;
    int32_t architecture_major;
    int32_t architecture_minor;
    uint32_t mig_count;
    uint32_t memory;       /* MiB; 0: not told */
    uint32_t fabric_state; /* NVML_GPU_FABRIC_STATE_*; 0: it has none, or that is not told */
    int32_t fabric_status; /* nvmlReturn_t */
    char uuid[NVC_PROBE_STRING];
    char name[NVC_PROBE_STRING];
    struct nvc_probe_mig mig[NVC_PROBE_MAX_MIG];
};

/* The one answer: this header, then `gpu_count` records of `gpu_size` bytes. `library` is where NVML was found. */
struct nvc_probe_frame {
    char magic[8];
    uint32_t version;
    uint32_t status;
    int32_t code;
    uint32_t gpu_count;
    uint32_t gpu_size;
    int32_t cuda_version;
    char step[NVC_PROBE_STRING];
    char text[256];
    char driver_version[NVC_PROBE_STRING];
    char library[256];
};

/* Bytes of one GPU that the processes of a cgroup may have: `soft` is reserved, `hard` never exceeded. UINT64_MAX as
 * `hard`: no limit. */
struct nvc_probe_limit {
    uint64_t soft;
    uint64_t hard;
    char uuid[NVC_PROBE_STRING];
};

/* `root` is the driver root's descriptor, or -1 to stay in the caller's root. `memory` (bytes) and `cpu`
 * (seconds) become resource limits. `libraries` are names for dlopen(3) in order, each NUL-terminated; an
 * empty one ends the list.
 *
 * With `limit_count`, at most NVC_PROBE_MAX_GPUS, the probe describes nothing: it sets `limits` for the cgroup with the
 * directory `cgroup`, all or none, and answers with those that were set before, in records of that size. For that it
 * keeps the ids of its caller and CAP_SYS_ADMIN, which NVML asks for. */
struct nvc_probe_options {
    int root;
    int ids;
    uint32_t uid;
    uint32_t gid;
    uint64_t memory;
    uint64_t cpu;
    const char *libraries;
    const char *cgroup;
    const struct nvc_probe_limit *limits;
    uint32_t limit_count;
};

/* Forks the probe. Returns its pid or -errno; *fd is the stream of its answer, *pidfd stands for it. */
int nvc_probe_start(const struct nvc_probe_options *options, int *fd, int *pidfd);

#endif
