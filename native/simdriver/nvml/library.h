/* What the files of the simulated NVML share. */
#pragma once

#include "abi/nvml.h"
#include "state.h"

/* What a handle points to: a GPU, or a MIG device of one. */
struct nvml_device {
    const struct sim_gpu *gpu;
    const struct sim_mig *mig; /* NULL: the GPU itself */
    uint32_t index;            /* among the visible GPUs; of the parent for a MIG device */
    uint32_t mig_index;
    uint32_t partition;
};

/* The visible GPUs, each followed by room for its visible MIG devices. */
struct nvml_gpu {
    struct nvml_device device;
    struct nvml_device mig[SIM_MAX_MIG];
    uint32_t mig_count;
};

struct nvml_library {
    struct sim_root root;
    const struct sim_state *state; /* NULL where it cannot be read: then nothing is in use */
    int state_fd;
    uint32_t users; /* nvmlInit calls without their nvmlShutdown */
    uint32_t gpu_count;
    struct nvml_gpu gpus[SIM_MAX_GPUS];
};

/* The initialised library, or NULL. */
struct nvml_library *nvml_library(void);

/* The GPU and partition that a handle stands for; NULL unless the library made it. */
const struct nvml_device *nvml_checked(nvmlDevice_t handle);

/* Entry of a function about a handle: leaves `device` set or returns the error. */
#define NVML_DEVICE(device, handle)                                                                         \
    const struct nvml_device *device = nvml_checked(handle);                                                \
    if (!nvml_library())                                                                                    \
        return NVML_ERROR_UNINITIALIZED;                                                                    \
    if (!device)                                                                                            \
    return NVML_ERROR_INVALID_ARGUMENT

#define NVML_ARGUMENT(condition)                                                                            \
    if (!(condition))                                                                                       \
    return NVML_ERROR_INVALID_ARGUMENT

/* One value of a device of which it is known. */
#define NVML_GET(name, type, known, value)                                                                  \
    NVML_API nvmlReturn_t name(nvmlDevice_t handle, type *out)                                              \
    {                                                                                                       \
        NVML_DEVICE(device, handle);                                                                        \
        NVML_ARGUMENT(out && (known));                                                                      \
        *out = (value);                                                                                     \
        return NVML_SUCCESS;                                                                                \
    }

/* Copies `text` as NVML does: all or INSUFFICIENT_SIZE. */
nvmlReturn_t nvml_copy(const char *text, char *out, unsigned int size);

/* Bytes of a device in use by programs, with what the driver keeps for itself. */
uint64_t nvml_used(const struct nvml_device *device);
