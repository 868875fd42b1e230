#ifndef NVC_RM_H
#define NVC_RM_H
#include <stdint.h>

/* Calls of the NVIDIA driver's resource manager by descriptors of its control file. Each returns 0, the driver's status
 * (a positive number, nvstatuscodes.h), or -errno. `fd` is the descriptor that the client was made by. */

#define NVC_RM_GPUS 32
#define NVC_RM_UUID 64
#define NVC_RM_CHANNELS 64

int nvc_rm_client(int fd, uint32_t *client);
int nvc_rm_free(int fd, uint32_t client, uint32_t parent, uint32_t object);
/* A device of class 0x80 and its first subdevice, under handles of the caller's choice. */
int nvc_rm_device(int fd, uint32_t client, uint32_t instance, uint32_t device, uint32_t subdevice);
/* Ids of the GPUs that somebody has open; 0xffffffff fills up. */
int nvc_rm_attached(int fd, uint32_t client, uint32_t *ids);
/* The device instance of a GPU, and its UUID as text, NUL-terminated. */
int nvc_rm_identify(int fd, uint32_t client, uint32_t gpu, uint32_t *instance, char *uuid);
/* Takes at most 64 channels of any clients off the GPU, also in the middle of a kernel, or lets them go on. A list with a
 * channel that is not there is done in part. */
int nvc_rm_disable(int fd, uint32_t client, uint32_t subdevice, int disable, uint32_t count,
                   const uint32_t *clients, const uint32_t *channels);
int nvc_rm_now(int fd, uint32_t client, uint32_t subdevice, uint64_t *ns);
int nvc_rm_set_timeslice(int fd, uint32_t client, uint32_t group, uint64_t us);
int nvc_rm_get_timeslice(int fd, uint32_t client, uint32_t group, uint64_t *us);

/* The log of the firmware that switches contexts of the graphics and compute engine. */
struct nvc_rm_log {
    int fd;
    uint32_t client;
    uint32_t subdevice;
    uint32_t handles; /* the first of four of the caller's choice */
    uint32_t made;    /* how many of them there are */
    uint32_t count;   /* of records that the buffer holds */
    uint32_t get;     /* the next one to read */
    uint32_t seen;    /* 1: `sequence` is of the record before */
    uint32_t sequence;
    uint64_t told;   /* records that were told as lost, and whose gap in the sequence is still to come */
    uint32_t reason; /* why the driver did not bind: NV2080_CTRL_GR_FECS_BIND_REASON_CODE_* */
    uint32_t step;   /* what failed, NVC_RM_LOG_* */
    void *header;
    void *records;
};

#define NVC_RM_LOG_HEADER 1
#define NVC_RM_LOG_RECORDS 2
#define NVC_RM_LOG_MAP_HEADER 3
#define NVC_RM_LOG_MAP_RECORDS 4
#define NVC_RM_LOG_BUFFER 5
#define NVC_RM_LOG_ENABLE 6
#define NVC_RM_LOG_BIND 7

#define NVC_RM_START 1
#define NVC_RM_END 2
#define NVC_RM_RESET 3

struct nvc_rm_record {
    uint64_t time; /* of the GPU's timer, ns; 0: the firmware gave none */
    uint32_t kind; /* NVC_RM_START, NVC_RM_END, NVC_RM_RESET */
    uint32_t pid;  /* of the host; 0xffffffff: the kernel's */
    uint32_t context;
    uint32_t instances; /* of MIG: the GPU instance and, in the low byte, the compute instance */
};

/* `header_fd` and `records_fd` are descriptors of the control file that serve for one mapping each; the caller closes them. */
int nvc_rm_log_open(struct nvc_rm_log *log, int header_fd, int records_fd);
/* Has the driver write what it has, and copies at most `room` records. `lost` is how many are missing before or between
 * them, and `count` how many were copied. -EBADMSG: what the driver wrote cannot be. */
int nvc_rm_log_read(struct nvc_rm_log *log, struct nvc_rm_record *out, uint32_t room, uint32_t *count,
                    uint64_t *lost);
void nvc_rm_log_close(struct nvc_rm_log *log);

#endif
