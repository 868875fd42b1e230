#pragma once
#include <stdint.h>

/* What the probe is to do with the ids: nothing, change them, or change them if they can be changed. */
#define NVC_PROBE_IDS_KEEP 0
#define NVC_PROBE_IDS_CHANGE 1
#define NVC_PROBE_IDS_TRY 2

/* `root` is the driver root's descriptor, or -1 to stay in the caller's root. `memory` (bytes) and `cpu` (seconds) become
 * resource limits. With `limits`, the process keeps CAP_SYS_ADMIN, which NVML asks for. */
struct nvc_probe_options {
    int root;
    int ids;
    uint32_t uid;
    uint32_t gid;
    uint64_t memory;
    uint64_t cpu;
    int limits;
};

/* Blocks all signals around a fork, and has SIGCHLD not ignored: the kernel would reap the probe behind our back. 0: as
 * before. */
void nvc_probe_signals(int blocked);

/* In the new process: takes every right from it, and leaves of its descriptors `stream` as number 3. 0, or an errno, and
 * what has failed in `step`. */
int nvc_probe_confine(const struct nvc_probe_options *options, int stream, int parent, const char **step);

/* dlfcn.h: NVML is loaded by Python, which needs no module for that. */
void *dlopen(const char *file, int mode);
void *dlsym(void *library, const char *name);
char *dlerror(void);
int dlinfo(void *library, int request, void *out);
