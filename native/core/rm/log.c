/* The switch log: an event buffer that the driver fills with what the firmware of the graphics engine tells. */
#include "rm.h"
#include "_rm.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { HEADER_BYTES = 4096, RECORD_BYTES = 512 << 10 };
enum { HEADER_MEMORY, RECORD_MEMORY, BUFFER };

static int make(struct nvc_rm_log *log, uint32_t handle, uint32_t class, void *parameters, uint32_t size)
{
    int error = nvc_rm_make(log->fd, log->client, log->client, handle, class, parameters, size);

    log->made += !error;
    return error;
}

static int make_memory(struct nvc_rm_log *log, uint32_t handle, uint64_t size)
{
    struct rm_memory memory = {
        .owner = 0x6e766364, .attr = ATTR_CACHED, .attr2 = ATTR2_USER_READ_ONLY, .size = size};

    return make(log, handle, CLASS_DEVICELESS, &memory, sizeof(memory));
}

/* A descriptor of the control file holds what is to be mapped by it, once. */
static int map_memory(struct nvc_rm_log *log, uint32_t handle, uint64_t size, int fd, void **out)
{
    struct rm_map call = {.client = log->client,
                          .device = log->client,
                          .memory = handle,
                          .length = size,
                          .flags = MAP_READ_ONLY,
                          .fd = fd};
    int error = nvc_rm_escape(log->fd, RM_MAP_MEMORY, &call, sizeof(call), &call.status);

    if (error)
        return error;
    void *memory = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return -errno;
    *out = memory;
    return 0;
}

static int bind(struct nvc_rm_log *log)
{
    uint32_t enable[] = {1, 1}; /* NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS_PARAMS: on, the oldest are kept */
    struct rm_bind parameters = {
        .buffer = log->handles + BUFFER,
        .record_size = sizeof(struct rm_log_record) - offsetof(struct rm_log_record, tag),
        .detail = 1,
        .all_users = 1,
    };
    /* The subdevice always: without it 580's constructor reads through a null pointer. */
    struct rm_buffer buffer = {
        .record_size = sizeof(struct rm_log_record),
        .record_count = log->count,
        .subdevice = log->subdevice,
        .header_memory = log->handles + HEADER_MEMORY,
        .record_memory = log->handles + RECORD_MEMORY,
    };
    int error;

    if (buffer.subdevice == 0)
        return -EINVAL;
    log->step = NVC_RM_LOG_BUFFER;
    error = make(log, log->handles + BUFFER, CLASS_BUFFER, &buffer, sizeof(buffer));
    if (error)
        return error;
    log->step = NVC_RM_LOG_ENABLE;
    error = nvc_rm_control(log->fd, log->client, log->handles + BUFFER, CMD_ENABLE_EVENTS, enable,
                           sizeof(enable));
    if (error)
        return error;
    log->step = NVC_RM_LOG_BIND;
    error = nvc_rm_control(log->fd, log->client, log->subdevice, CMD_BIND, &parameters, sizeof(parameters));
    log->reason = parameters.reason;
    return error;
}

int nvc_rm_log_open(struct nvc_rm_log *log, int header_fd, int records_fd)
{
    static const uint64_t sizes[] = {HEADER_BYTES, RECORD_BYTES};
    const int fds[] = {header_fd, records_fd};
    void **const places[] = {&log->header, &log->records};
    int error = 0;

    log->made = 0;
    log->header = log->records = NULL;
    log->count = (RECORD_BYTES - HEADER_BYTES) / sizeof(struct rm_log_record);
    for (uint32_t i = 0; i < 2 && !error; i++) {
        log->step = NVC_RM_LOG_HEADER + i;
        error = make_memory(log, log->handles + i, sizes[i]);
    }
    for (uint32_t i = 0; i < 2 && !error; i++) {
        log->step = NVC_RM_LOG_MAP_HEADER + i;
        error = map_memory(log, log->handles + i, sizes[i], fds[i], places[i]);
    }
    if (!error)
        error = bind(log);
    if (error) {
        nvc_rm_log_close(log);
        return error;
    }
    log->get = __atomic_load_n(&((struct rm_log_header *)log->header)->get, __ATOMIC_RELAXED);
    if (log->get >= log->count) {
        nvc_rm_log_close(log);
        return -EBADMSG;
    }
    log->step = log->seen = 0;
    log->told = 0;
    return 0;
}

void nvc_rm_log_close(struct nvc_rm_log *log)
{
    if (log->made > BUFFER) /* the driver writes no more */
        nvc_rm_free(log->fd, log->client, log->client, log->handles + --log->made);
    if (log->header)
        munmap(log->header, HEADER_BYTES);
    if (log->records)
        munmap(log->records, RECORD_BYTES);
    log->header = log->records = NULL;
    while (log->made > 0)
        nvc_rm_free(log->fd, log->client, log->client, log->handles + --log->made);
}

/* class/cl90cdfecs.h: NV_EVENT_BUFFER_FECS_CTXSWTAG_*. 0: of no interest. */
static uint32_t kind_of(uint8_t tag)
{
    switch (tag) {
    case 0x05: /* CONTEXT_START */
    case 0x06: /* SIMPLE_START */
        return NVC_RM_START;
    case 0x03: /* SAVE_END */
    case 0x07: /* SIMPLE_END */
        return NVC_RM_END;
    case 0xfe: /* ENGINE_RESET */
        return NVC_RM_RESET;
    default:
        return 0;
    }
}

int nvc_rm_log_read(struct nvc_rm_log *log, struct nvc_rm_record *out, uint32_t room, uint32_t *count,
                    uint64_t *lost)
{
    const struct rm_log_header *header = log->header;
    const struct rm_log_record *records = log->records;
    uint64_t dropped, missing = 0;
    uint32_t put, before = log->get;
    int error;

    *count = 0;
    *lost = 0;
    error = nvc_rm_control(log->fd, log->client, log->handles + BUFFER, CMD_FLUSH, NULL, 0);
    if (error)
        return error;
    put = __atomic_load_n(&header->put, __ATOMIC_ACQUIRE);
    dropped = __atomic_load_n(&header->dropped, __ATOMIC_RELAXED);
    if (put >= log->count)
        return -EBADMSG;
    log->told += dropped; /* what there was no room for shows in the sequence too, once a record follows */
    while (log->get != put && *count < room) {
        struct rm_log_record record;
        uint32_t kind;

        memcpy(&record, &records[log->get], sizeof(record));
        log->get = (log->get + 1) % log->count;
        if (record.type != RECORD_FECS_V2) {
            missing++;
            continue;
        }
        if (log->seen) {
            uint64_t gap = (uint16_t)(record.sequence - log->sequence - 1);
            uint64_t known = gap < log->told ? gap : log->told;

            log->told -= known;
            missing += gap - known;
        }
        log->seen = 1;
        log->sequence = record.sequence;
        kind = kind_of(record.tag);
        if (!kind)
            continue;
        out[(*count)++] = (struct nvc_rm_record){
            .time = record.time,
            .kind = kind,
            .pid = record.pid,
            .context = record.context,
            .instances = (uint32_t)record.gpu_instance << 8 | record.compute_instance,
        };
    }
    *lost = missing + dropped;
    if (log->get == before && !dropped)
        return 0;
    uint32_t update[] = {log->get, 0}; /* NV_EVENT_BUFFER_CTRL_CMD_UPDATE_GET_PARAMS */
    return nvc_rm_control(log->fd, log->client, log->handles + BUFFER, CMD_UPDATE_GET, update,
                          sizeof(update));
}
