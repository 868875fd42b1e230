#pragma once

/* The variables of containers that nvc/request/environment.py knows. Without `=` at its end, a name begins others. No
 * other variable is kept in a record: it may be a secret. */
enum asks { WITH_OTHERS, FOR_GPUS, FOR_SLICE, FOR_BOTH = FOR_GPUS | FOR_SLICE };
static const struct variable {
    const char *name;
    enum asks asks;
} VARIABLES[] = {{"NVIDIA_VISIBLE_DEVICES=", FOR_GPUS},
                 {"NVIDIA_DRIVER_CAPABILITIES=", WITH_OTHERS},
                 {"NVIDIA_REQUIRE_", WITH_OTHERS},
                 {"CUDA_VERSION=", FOR_GPUS},
                 {"NVIDIA_DISABLE_REQUIRE=", WITH_OTHERS},
                 {"NVIDIA_MIG_CONFIG_DEVICES=", WITH_OTHERS},
                 {"NVIDIA_MIG_MONITOR_DEVICES=", WITH_OTHERS},
                 {"NVIDIA_IMEX_CHANNELS=", WITH_OTHERS},
                 {"NVIDIA_GDS=", WITH_OTHERS},
                 {"NVIDIA_MOFED=", WITH_OTHERS},
                 {"NVIDIA_NVSWITCH=", WITH_OTHERS},
                 {"NVIDIA_GDRCOPY=", WITH_OTHERS},
                 {"NVC_VGPU_", FOR_SLICE},
                 {"CUDA_DEVICE_MEMORY_LIMIT", FOR_SLICE},
                 {"CUDA_DEVICE_SM_LIMIT", FOR_SLICE},
                 {"ALIYUN_COM_GPU_MEM_CONTAINER", FOR_SLICE},
                 {"ALIYUN_COM_GPU_SCHD_WEIGHT", FOR_SLICE},
                 {"ALIYUN_COM_GPU_VISIBLE_DEVICES", FOR_BOTH},
                 {"NVIDIA_GPU_MEMORY_LIMIT", FOR_SLICE},
                 {"NVIDIA_GPU_MEMORY_REQUEST", FOR_SLICE}};
#define VARIABLE_COUNT (sizeof(VARIABLES) / sizeof(VARIABLES[0]))
