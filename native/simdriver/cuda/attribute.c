/* cuDeviceGetAttribute: constants of the architecture, and what the description says of the model. */
#include "driver.h"

#include <limits.h>

/* Values that all simulated models share, by number of the attribute; what is missing is 0. */
static const int common[] = {
    [1] = 1024, /* threads per block, then its dimensions and the grid's */
    [2] = 1024,     [3] = 1024,       [4] = 64,          [5] = INT_MAX, [6] = 65535,
    [7] = 65535,    [8] = 48 << 10, /* shared memory per block without opting in */
    [9] = 64 << 10,                 /* constant memory */
    [10] = 32,                      /* warp */
    [11] = INT_MAX,                 /* pitch */
    [12] = 65536,                   /* registers per block */
    [14] = 512,                     /* texture alignment */
    [15] = 1,       [19] = 1,       /* can map host memory */
    [21] = 131072,  [22] = 131072,    [23] = 65536,      [24] = 16384,  [25] = 16384,
    [26] = 16384,   [27] = 32768,     [28] = 32768,      [29] = 2048,   [30] = 512, /* surface alignment */
    [31] = 1,                                                                       /* concurrent kernels */
    [32] = 1,                                                                       /* ECC */
    [40] = 3,                                                                       /* copy engines */
    [41] = 1,                                                                       /* unified addresses */
    [42] = 32768,   [43] = 2048,      [44] = 1,          [45] = 32768,  [46] = 32768,
    [47] = 8192,    [48] = 8192,      [49] = 32768,      [51] = 32, /* texture pitch alignment */
    [52] = 32768,   [53] = 32768,     [54] = 2046,       [55] = 32768,  [56] = 131072,
    [57] = 65536,   [58] = 16384,     [59] = 16384,      [60] = 16384,  [61] = 32768,
    [62] = 2048,    [63] = 32768,     [64] = 32768,      [65] = 2048,   [66] = 32768,
    [67] = 32768,   [68] = 2046,      [69] = 268435456,  [70] = 131072, [71] = 65000,
    [72] = 2097120, [73] = 32768,     [74] = 32768,      [77] = 32768,  [78] = 1, /* stream priorities */
    [79] = 1,       [80] = 1,         [82] = 65536, /* registers per multiprocessor */
    [83] = 1,                                       /* managed memory */
    [87] = 2,       [89] = 1,                       /* concurrent managed access */
    [90] = 1,                                       /* preemption */
    [91] = 1,       [92] = 1,                       /* memory operations in streams */
    [93] = 1,       [94] = 1,         [95] = 1,     /* cooperative launches */
    [98] = 1,       [99] = 1,                       /* host memory can be registered */
    [102] = 1,                                      /* virtual memory management, */
    [103] = 1,                                      /* shared by descriptors */
    [106] = 32,     [108] = 32 * MIB, [109] = 128 * MIB, [111] = 1024,  [113] = 1,
    [115] = 1, /* memory pools */
    [122] = 1,      [123] = 1,        [124] = 1,         [126] = 4,     [129] = 1,
    [134] = 0,
};

static int of_model(int attribute, const struct device *device)
{
    const struct sim_gpu *gpu = device->gpu;
    switch (attribute) {
    case 13:
        return (int)gpu->clock_mhz * 1000;
    case 16:
        return (int)((device->multiprocessors * driver()->mps_percent + 99) / 100);
    case 33:
        return (int)gpu->pci_bus;
    case 34:
        return (int)gpu->pci_device;
    case 36:
        return (int)gpu->memory_clock_mhz * 1000;
    case 37:
        return (int)gpu->memory_bus_width;
    case 38:
        return (int)gpu->l2_cache;
    case 39:
        return (int)gpu->threads;
    case 50:
        return (int)gpu->pci_domain;
    case 75:
        return (int)gpu->capability.major;
    case 76:
        return (int)gpu->capability.minor;
    case 81:
        return (int)gpu->shared_memory;
    case 97:
        return (int)gpu->shared_memory - 1024;
    case 120: /* clusters and tensor maps came with compute capability 9 */
    case 127:
        return gpu->capability.major >= 9;
    case 139:
        return (int)gpu->pci_device_id;
    case 140:
        return (int)gpu->pci_subsystem_id;
    default:
        return attribute < (int)(sizeof(common) / sizeof(common[0])) ? common[attribute] : 0;
    }
}

static CUresult get(int *out, int attribute, const struct device *device)
{
    CU_ARGUMENT(out && attribute > 0 && attribute <= 147);
    CU_REQUIRE(device, CUDA_ERROR_INVALID_DEVICE);
    *out = of_model(attribute, device);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuDeviceGetAttribute, (int *out, int attribute, CUdevice device),
          get(out, attribute, device_at(device)))

static CUresult properties(CUdevprop *out, const struct device *device)
{
    CU_ARGUMENT(out);
    CU_REQUIRE(device, CUDA_ERROR_INVALID_DEVICE);
    *out = (CUdevprop){
        .maxThreadsPerBlock = common[1],
        .maxThreadsDim = {common[2], common[3], common[4]},
        .maxGridSize = {common[5], common[6], common[7]},
        .sharedMemPerBlock = common[8],
        .totalConstantMemory = common[9],
        .SIMDWidth = common[10],
        .memPitch = common[11],
        .regsPerBlock = common[12],
        .clockRate = of_model(13, device),
        .textureAlign = common[14],
    };
    return CUDA_SUCCESS;
}

CU_EXPORT(cuDeviceGetProperties, (CUdevprop * out, CUdevice device), properties(out, device_at(device)))
