/* Calls of the driver's resource manager: numbers and structures of nvos.h, cl90cd.h, cl90cdfecs.h and ctrl*.h in NVIDIA's
 * open-gpu-kernel-modules, the same in 580 and 595. 32-bit programs have the same layouts. */
#ifndef NVC_SIM_RM_ABI_H
#define NVC_SIM_RM_ABI_H

#include <stdint.h>
#include <sys/ioctl.h>

#define RM_CONTROL_FILE "/proc/driver/nvidia/sim/rm/nvidiactl"

enum { RM_FREE = 0x29, RM_CONTROL = 0x2A, RM_ALLOC = 0x2B, RM_MAP = 0x4E, RM_UNMAP = 0x4F };

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
    CLASS_CLIENT = 0x41,
    CLASS_DEVICE = 0x80,
    CLASS_SUBDEVICE = 0x2080,
    CLASS_GROUP = 0xa06c,
    CLASS_CHANNEL = 0xc86f, /* Hopper's; each generation has one that ends like this */
    CLASS_EVENT_BUFFER = 0x90cd,
    CLASS_MEMORY = 0x90ce, /* NV01_MEMORY_DEVICELESS */
};

enum { ENGINE_GRAPHICS = 1, ENGINE_GRAPHICS_LAST = 8, ENGINE_COPY = 9 };

enum {
    CMD_ATTACHED_IDS = 0x201,
    CMD_ID_INFO = 0x205,
    CMD_UUID_OF_ID = 0x275,
    CMD_GID_INFO = 0x2080014a,
    CMD_TIME = 0x20800403,
    CMD_DISABLE_CHANNELS = 0x2080110b,
    CMD_BIND_SWITCHES = 0x20801238,
    CMD_BUFFER_ENABLE = 0x90cd0101,
    CMD_BUFFER_GET = 0x90cd0102,
    CMD_BUFFER_FLUSH = 0x90cd0104,
};

#define CMD_GROUP_SCHEDULE 0xa06c0101u
#define CMD_SET_TIMESLICE 0xa06c0103u
#define CMD_GET_TIMESLICE 0xa06c0104u
#define CMD_GROUP_PREEMPT 0xa06c0105u
#define CMD_CHANNEL_SCHEDULE 0xa06f0103u
#define CMD_WORK_TOKEN 0xc36f0108u

struct rm_alloc { /* NVOS21 */
    uint32_t client, parent, handle, class;
    uint64_t parameters;
    uint32_t size, status;
};

struct rm_alloc_rights { /* NVOS64 */
    uint32_t client, parent, handle, class;
    uint64_t parameters, rights;
    uint32_t size, flags, status, reserved;
};

struct rm_control { /* NVOS54 */
    uint32_t client, object, command, flags;
    uint64_t parameters;
    uint32_t size, status;
};

struct rm_free { /* NVOS00 */
    uint32_t client, parent, handle, status;
};

struct rm_map { /* NVOS33 and a descriptor */
    uint32_t client, device, memory, reserved;
    uint64_t offset, length, address;
    uint32_t status, flags;
    int32_t fd;
    uint32_t reserved2;
};

struct rm_unmap { /* NVOS34 */
    uint32_t client, device, memory, reserved;
    uint64_t address;
    uint32_t status, flags;
};

struct rm_device { /* NV0080_ALLOC_PARAMETERS */
    uint32_t id, share, target_client, target_device, flags, reserved;
    uint64_t space_size, space_start, space_limit;
    uint32_t mode, reserved2;
};

struct rm_group { /* NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS */
    uint32_t error, ecc_error, space, engine;
    uint8_t from_plugin, reserved[3];
};

struct rm_memory { /* NV_MEMORY_ALLOCATION_PARAMS */
    uint32_t owner, type, flags, width, height;
    int32_t pitch;
    uint32_t attributes, attributes2, format, compression, zcull, reserved;
    uint64_t low, high, size, alignment, offset, limit, address;
    uint32_t tag, space, internal, tag2;
    int32_t node;
    uint32_t reserved2;
};

struct rm_event_buffer { /* NV_EVENT_BUFFER_ALLOC_PARAMETERS */
    uint64_t header, records;
    uint32_t record_size, record_count;
    uint64_t data;
    uint32_t data_size, records_free;
    uint64_t notification;
    uint32_t data_free, subdevice, flags, header_memory, record_memory, data_memory;
};

struct rm_disable { /* NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS */
    uint8_t disable, reserved[3];
    uint32_t count;
    uint8_t only_scheduling, rewind, reserved2[6];
    uint64_t event;
    uint32_t clients[64], channels[64];
};

struct rm_bind { /* NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS */
    uint32_t buffer, record_size, detail, filter;
    uint8_t all_users, reserved[3];
    uint32_t reason;
};

struct rm_header { /* NV_EVENT_BUFFER_HEADER */
    uint32_t get, put;
    uint64_t count, dropped, data_dropped;
};

struct rm_record { /* a record's header, and NV_EVENT_BUFFER_FECS_RECORD_V2 */
    uint16_t type, subtype;
    uint32_t data;
    uint8_t tag, machine;
    uint16_t sequence;
    uint32_t context, pid;
    uint16_t reserved;
    uint8_t gpu_instance, compute_instance;
    uint64_t time;
};

struct rm_id_info { /* NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS */
    uint32_t id, flags, device, subdevice, sli, board, instance;
    int32_t node;
};

struct rm_uuid { /* NV0000_CTRL_GPU_GET_UUID_FROM_GPU_ID_PARAMS */
    uint32_t id, flags;
    uint8_t uuid[256];
    uint32_t length;
};

struct rm_gid { /* NV2080_CTRL_GPU_GET_GID_INFO_PARAMS */
    uint32_t index, flags, length;
    uint8_t gid[256];
};

_Static_assert(sizeof(struct rm_alloc) == 32 && sizeof(struct rm_alloc_rights) == 48, "driver's interface");
_Static_assert(sizeof(struct rm_control) == 32 && sizeof(struct rm_free) == 16, "driver's interface");
_Static_assert(sizeof(struct rm_map) == 56 && sizeof(struct rm_unmap) == 32, "driver's interface");
_Static_assert(sizeof(struct rm_device) == 56 && sizeof(struct rm_group) == 20, "driver's interface");
_Static_assert(sizeof(struct rm_memory) == 128 && sizeof(struct rm_event_buffer) == 72,
               "driver's interface");
_Static_assert(sizeof(struct rm_disable) == 536 && sizeof(struct rm_bind) == 24, "driver's interface");
_Static_assert(sizeof(struct rm_header) == 32 && sizeof(struct rm_record) == 32, "driver's interface");
_Static_assert(sizeof(struct rm_id_info) == 32 && sizeof(struct rm_uuid) == 268, "driver's interface");
_Static_assert(sizeof(struct rm_gid) == 268, "driver's interface");

#endif
