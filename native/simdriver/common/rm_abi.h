/* Numbers and structures of the driver's resource manager. Facts of open-gpu-kernel-modules, src/common/sdk/nvidia/inc, the
 * same in 580.105.08 and 595.45.04; the file is named at each. An NvBool has one byte, and 32-bit programs have the same
 * layouts. Those of calls that nvcd makes are in nvc/kernel/rm_abi.py, too. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>

/* src/nvidia/arch/nvalloc/unix/include/nv_escape.h */
enum { RM_FREE = 0x29, RM_CONTROL = 0x2A, RM_ALLOC = 0x2B, RM_MAP_MEMORY = 0x4E, RM_UNMAP = 0x4F };

/* class/cl*.h */
enum {
    CLASS_CLIENT = 0x41,       /* NV01_ROOT_CLIENT */
    CLASS_DEVICE = 0x80,       /* NV01_DEVICE_0 */
    CLASS_SUBDEVICE = 0x2080,  /* NV20_SUBDEVICE_0 */
    CLASS_BUFFER = 0x90cd,     /* NV_EVENT_BUFFER */
    CLASS_DEVICELESS = 0x90ce, /* NV01_MEMORY_DEVICELESS */
};

/* ctrl/ctrl*.h; times are 64-bit numbers */
#define CMD_ATTACHED 0x201u
#define CMD_ID_INFO 0x205u
#define CMD_UUID 0x275u
#define CMD_DISABLE_CHANNELS 0x2080110bu
#define CMD_GET_TIME 0x20800403u
#define CMD_BIND 0x20801238u
#define CMD_SET_TIMESLICE 0xa06c0103u
#define CMD_GET_TIMESLICE 0xa06c0104u
#define CMD_ENABLE_EVENTS 0x90cd0101u
#define CMD_UPDATE_GET 0x90cd0102u
#define CMD_FLUSH 0x90cd0104u

struct rm_free { /* nvos.h: NVOS00_PARAMETERS */
    uint32_t client, parent, handle, status;
};
_Static_assert(sizeof(struct rm_free) == 16, "NVOS00");

struct rm_alloc { /* nvos.h: NVOS21_PARAMETERS */
    uint32_t client, parent, handle, class;
    uint64_t parameters;
    uint32_t size, status;
};
_Static_assert(sizeof(struct rm_alloc) == 32 && offsetof(struct rm_alloc, status) == 28, "NVOS21");

struct rm_control { /* nvos.h: NVOS54_PARAMETERS */
    uint32_t client, object, command, flags;
    uint64_t parameters;
    uint32_t size, status;
};
_Static_assert(sizeof(struct rm_control) == 32 && offsetof(struct rm_control, status) == 28, "NVOS54");

struct rm_map { /* nvos.h: NVOS33_PARAMETERS; nv-unix-nvos-params-wrappers.h: and a descriptor */
    uint32_t client, device, memory, pad;
    uint64_t offset, length, address;
    uint32_t status, flags;
    int32_t fd;
    uint32_t pad2;
};
_Static_assert(sizeof(struct rm_map) == 56 && offsetof(struct rm_map, fd) == 48, "NVOS33 with a descriptor");

struct rm_device { /* class/cl0080.h: NV0080_ALLOC_PARAMETERS */
    uint32_t id, share, target_client, target_device, flags, pad;
    uint64_t va_size, va_start, va_limit;
    uint32_t va_mode, pad2;
};
_Static_assert(sizeof(struct rm_device) == 56 && offsetof(struct rm_device, va_mode) == 48, "NV0080");

struct rm_id_info { /* the same file: NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS */
    uint32_t id, flags, device, subdevice, sli, board, instance;
    int32_t node;
};
_Static_assert(sizeof(struct rm_id_info) == 32 && offsetof(struct rm_id_info, device) == 8, "id info");

struct rm_uuid { /* the same file: NV0000_CTRL_GPU_GET_UUID_FROM_GPU_ID_PARAMS; flags 0: text, SHA-1 */
    uint32_t id, flags;
    uint8_t uuid[256];
    uint32_t length;
};
_Static_assert(sizeof(struct rm_uuid) == 268 && offsetof(struct rm_uuid, length) == 264, "uuid");

struct rm_disable { /* ctrl/ctrl2080/ctrl2080fifo.h: NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS */
    uint8_t disable, pad[3];
    uint32_t count;
    uint8_t only_scheduling, rewind, pad2[6];
    uint64_t event;
    uint32_t clients[64], channels[64];
};
_Static_assert(sizeof(struct rm_disable) == 536 && offsetof(struct rm_disable, only_scheduling) == 8 &&
                   offsetof(struct rm_disable, event) == 16 && offsetof(struct rm_disable, channels) == 280,
               "disable channels");

struct rm_memory { /* nvos.h: NV_MEMORY_ALLOCATION_PARAMS */
    uint32_t owner, type, flags, width, height;
    int32_t pitch;
    uint32_t attr, attr2, format, compressed, zcull, pad;
    uint64_t low, high, size, alignment, offset, limit, address;
    uint32_t ctag, vaspace, internal, tag;
    int32_t numa;
    uint32_t pad2;
};
_Static_assert(sizeof(struct rm_memory) == 128 && offsetof(struct rm_memory, attr) == 24 &&
                   offsetof(struct rm_memory, size) == 64,
               "memory");

struct rm_buffer { /* class/cl90cd.h: NV_EVENT_BUFFER_ALLOC_PARAMETERS */
    uint64_t header, records;
    uint32_t record_size, record_count;
    uint64_t variable;
    uint32_t variable_size, records_free;
    uint64_t notification;
    uint32_t variable_free, subdevice, flags, header_memory, record_memory, variable_memory;
};
_Static_assert(sizeof(struct rm_buffer) == 72 && offsetof(struct rm_buffer, subdevice) == 52 &&
                   offsetof(struct rm_buffer, record_memory) == 64,
               "event buffer");

struct
    rm_bind { /* ctrl/ctrl2080/ctrl2080gr.h: NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS; detail 1: simple */
    uint32_t buffer, record_size, detail, filter;
    uint8_t all_users, pad[3];
    uint32_t reason;
};
_Static_assert(sizeof(struct rm_bind) == 24 && offsetof(struct rm_bind, reason) == 20, "bind");

struct rm_log_header { /* class/cl90cd.h: NV_EVENT_BUFFER_HEADER */
    uint32_t get, put;
    uint64_t count, dropped, variable_dropped;
};
_Static_assert(sizeof(struct rm_log_header) == 32 && offsetof(struct rm_log_header, dropped) == 16,
               "log header");

struct
    rm_log_record { /* NV_EVENT_BUFFER_RECORD_HEADER there; class/cl90cdfecs.h: NV_EVENT_BUFFER_FECS_RECORD_V2 */
    uint16_t type, subtype;
    uint32_t variable;
    uint8_t tag, vmid;
    uint16_t sequence;
    uint32_t context, pid;
    uint16_t reserved;
    uint8_t gpu_instance, compute_instance;
    uint64_t time;
};
_Static_assert(sizeof(struct rm_log_record) == 32 && offsetof(struct rm_log_record, pid) == 16 &&
                   offsetof(struct rm_log_record, time) == 24,
               "log record");

#define RM_CONTROL_FILE "/proc/driver/nvidia/sim/rm/nvidiactl"

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
