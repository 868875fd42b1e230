#ifndef NVC_RM_INTERNAL_H
#define NVC_RM_INTERNAL_H

/* Structures of the driver's interface. Facts of open-gpu-kernel-modules, src/common/sdk/nvidia/inc, the same in 580.105.08
 * and 595.45.04; the file is named at each. An NvBool has one byte. */

#include <stddef.h>
#include <stdint.h>

/* src/nvidia/arch/nvalloc/unix/include/nv_escape.h; the magic is NV_IOCTL_MAGIC of nv-ioctl-numbers.h */
enum { RM_MAGIC = 'F', RM_FREE = 0x29, RM_CONTROL = 0x2A, RM_ALLOC = 0x2B, RM_MAP_MEMORY = 0x4E };

/* class/cl*.h */
enum {
    CLASS_CLIENT = 0x41,       /* NV01_ROOT_CLIENT */
    CLASS_DEVICE = 0x80,       /* NV01_DEVICE_0 */
    CLASS_SUBDEVICE = 0x2080,  /* NV20_SUBDEVICE_0 */
    CLASS_BUFFER = 0x90cd,     /* NV_EVENT_BUFFER */
    CLASS_DEVICELESS = 0x90ce, /* NV01_MEMORY_DEVICELESS */
};

/* ctrl/ctrl*.h; times are 64-bit numbers */
enum { ATTACHED_BYTES = 128 }; /* NV0000_CTRL_GPU_GET_ATTACHED_IDS_PARAMS */
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
/* nvos.h: NVOS32_ATTR_COHERENCY 31:29, cached; NVOS32_ATTR2_PROTECTION_USER 22:22, read-only; NVOS33_FLAGS_ACCESS 1:0 */
#define ATTR_CACHED (1u << 29)
#define ATTR2_USER_READ_ONLY (1u << 22)
#define MAP_READ_ONLY 1u

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
enum { RECORD_FECS_V2 = 2 }; /* class/cl90cdtypes.h */

/* The status of a call, or -errno. */
int nvc_rm_make(int fd, uint32_t root, uint32_t parent, uint32_t object, uint32_t class, void *parameters,
                uint32_t size);
int nvc_rm_control(int fd, uint32_t client, uint32_t object, uint32_t command, void *parameters,
                   uint32_t size);
int nvc_rm_escape(int fd, unsigned int number, void *structure, uint32_t size, const uint32_t *status);

#endif
