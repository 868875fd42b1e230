/* What the simulated resource manager knows besides the calls that nvcd makes: numbers and structures of nvos.h and
 * ctrl*.h in NVIDIA's open-gpu-kernel-modules. 32-bit programs have the same layouts. */
#ifndef NVC_SIM_RM_ABI_H
#define NVC_SIM_RM_ABI_H

#include "core/rm/_rm.h"

#include <sys/ioctl.h>

#define RM_CONTROL_FILE "/proc/driver/nvidia/sim/rm/nvidiactl"

enum { RM_UNMAP = 0x4F };

enum {
    RM_OK = 0,
    RM_INSERT_DUPLICATE_NAME = 0x19,
    RM_INSUFFICIENT_RESOURCES = 0x1A,
    RM_INSUFFICIENT_PERMISSIONS = 0x1B,
    RM_INVALID_ACCESS_TYPE = 0x1D,
    RM_INVALID_ARGUMENT = 0x1F,
    RM_INVALID_CHANNEL = 0x21,
    RM_INVALID_CLIENT = 0x23,
    RM_INVALID_DEVICE = 0x26,
    RM_INVALID_OBJECT_HANDLE = 0x33,
    RM_INVALID_OBJECT_PARENT = 0x36,
    RM_INVALID_PARAM_STRUCT = 0x3A,
    RM_INVALID_POINTER = 0x3D,
    RM_INVALID_STATE = 0x40,
    RM_NO_MEMORY = 0x51,
    RM_NOT_SUPPORTED = 0x56,
    RM_OBJECT_NOT_FOUND = 0x57,
};

enum {
    CLASS_GROUP = 0xa06c,
    CLASS_CHANNEL = 0xc86f, /* Hopper's; each generation has one that ends like this */
};

enum { ENGINE_GRAPHICS = 1, ENGINE_GRAPHICS_LAST = 8, ENGINE_COPY = 9 };

#define CMD_GID_INFO 0x2080014au
#define CMD_GROUP_SCHEDULE 0xa06c0101u
#define CMD_GROUP_PREEMPT 0xa06c0105u
#define CMD_CHANNEL_SCHEDULE 0xa06f0103u
#define CMD_WORK_TOKEN 0xc36f0108u

struct rm_alloc_rights { /* NVOS64 */
    uint32_t client, parent, handle, class;
    uint64_t parameters, rights;
    uint32_t size, flags, status, reserved;
};

struct rm_unmap { /* NVOS34 */
    uint32_t client, device, memory, reserved;
    uint64_t address;
    uint32_t status, flags;
};

struct rm_group { /* NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS */
    uint32_t error, ecc_error, space, engine;
    uint8_t from_plugin, reserved[3];
};

struct rm_gid { /* NV2080_CTRL_GPU_GET_GID_INFO_PARAMS */
    uint32_t index, flags, length;
    uint8_t gid[256];
};

_Static_assert(sizeof(struct rm_alloc_rights) == 48 && sizeof(struct rm_unmap) == 32, "driver's interface");
_Static_assert(sizeof(struct rm_group) == 20 && sizeof(struct rm_gid) == 268, "driver's interface");

#endif
