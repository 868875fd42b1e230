/* The description of a simulated driver: which GPUs and MIG devices exist. Written by `nvc-cli sim create`.
 *
 * Text, one `key=value` per line, no blanks, no comments. It starts with `format=1`; `gpu=N` begins a GPU and
 * `mig=N` a MIG device of that GPU. Every key of a section is there exactly once; an unknown key is an error. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum {
    SIM_MAX_GPUS = 32, /* as many as the driver's mig-minors table knows */
    SIM_MAX_MIG = 8,
    SIM_MAX_DESCRIPTION = 256 * 1024, /* bytes */
    SIM_MAX_LINE = 256,
};

struct sim_version {
    uint32_t major, minor;
};

struct sim_mig {
    char uuid[64];
    char profile[32];
    uint32_t gpu_instance, compute_instance;
    uint32_t gpu_cap_minor, compute_cap_minor; /* of /dev/nvidia-caps/nvidia-capN */
    uint32_t gpu_slices, compute_slices;
    uint32_t multiprocessors;
    uint64_t memory; /* bytes */
};

struct sim_gpu {
    char uuid[64];
    char name[96];
    char serial[32];
    uint32_t minor;
    uint32_t pci_domain, pci_bus, pci_device;
    uint32_t pci_device_id, pci_subsystem_id;
    uint32_t brand; /* nvmlBrandType_t */
    struct sim_version capability;
    uint32_t multiprocessors;
    uint32_t clock_mhz, memory_clock_mhz;
    uint32_t memory_bus_width; /* bits */
    uint32_t l2_cache;         /* bytes */
    uint32_t shared_memory;    /* bytes per multiprocessor */
    uint32_t threads;          /* resident per multiprocessor */
    uint32_t power_limit;      /* milliwatts */
    uint64_t memory;           /* bytes, what NVML calls total */
    uint64_t reserved_memory;  /* bytes of it that no program gets */
    uint64_t context_memory;   /* bytes that a CUDA context takes */
    uint32_t mig_capable, mig_enabled;
    uint32_t mig_count;
    struct sim_mig mig[SIM_MAX_MIG];
};

struct sim_description {
    char driver_version[32]; /* digits and dots, as in library file names */
    struct sim_version cuda_version;
    uint32_t uvm_major, caps_major;
    uint32_t gpu_count;
    struct sim_gpu gpus[SIM_MAX_GPUS];
};

/* Where and why a description was refused. */
struct sim_parse_error {
    uint32_t line; /* from 1 */
    const char *cause;
};

/* Reads `size` bytes of `text`. Returns 0, or -1 with `error` filled; `out` is then undefined. */
int sim_description_parse(const char *text, size_t size, struct sim_description *out,
                          struct sim_parse_error *error);
