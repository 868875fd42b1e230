/* Feeds arbitrary memory to the reader of the switch log, as a driver of another kind could write it: the header, and
 * records behind it. What it reads stays in the buffer, and it never reads more than there is room for. */
#include "_rm.h"
#include "../core/rm/rm.h"

#include <stdlib.h>
#include <string.h>

#define PROMISE(condition)                                                                                  \
    do {                                                                                                    \
        if (!(condition))                                                                                   \
            abort();                                                                                        \
    } while (0)

static uint32_t told_get;

int nvc_rm_control(int fd, uint32_t client, uint32_t object, uint32_t command, void *parameters,
                   uint32_t size)
{
    (void)fd, (void)client, (void)object;
    if (command == CMD_UPDATE_GET) {
        PROMISE(size == 2 * sizeof(told_get));
        memcpy(&told_get, parameters, sizeof(told_get));
    }
    return 0;
}

int nvc_rm_make(int fd, uint32_t root, uint32_t parent, uint32_t object, uint32_t class, void *parameters,
                uint32_t size)
{
    (void)fd, (void)root, (void)parent, (void)object, (void)class, (void)parameters, (void)size;
    abort();
}

int nvc_rm_escape(int fd, unsigned int number, void *structure, uint32_t size, const uint32_t *status)
{
    (void)fd, (void)number, (void)structure, (void)size, (void)status;
    abort();
}

int nvc_rm_free(int fd, uint32_t client, uint32_t parent, uint32_t object)
{
    (void)fd, (void)client, (void)parent, (void)object;
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct rm_log_header header = {0};
    struct nvc_rm_log log = {.header = &header};
    struct nvc_rm_record out[4];
    uint32_t count;
    uint64_t lost;

    told_get = 0;
    if (size < sizeof(header) + sizeof(struct rm_log_record))
        return 0;
    memcpy(&header, data, sizeof(header));
    log.count = (uint32_t)((size - sizeof(header)) / sizeof(struct rm_log_record));
    log.records = malloc(log.count * sizeof(struct rm_log_record));
    if (!log.records)
        return 0;
    memcpy(log.records, data + sizeof(header), log.count * sizeof(struct rm_log_record));
    header.dropped &= 0xffff;
    for (int i = 0; i < 8; i++) {
        int result = nvc_rm_log_read(&log, out, 4, &count, &lost);
        PROMISE(log.get < log.count && count <= 4);
        if (result) {
            PROMISE(header.put >= log.count && count == 0);
            break;
        }
        PROMISE(told_get < log.count && lost < UINT64_C(1) << 40);
        for (uint32_t k = 0; k < count; k++)
            PROMISE(out[k].kind >= NVC_RM_START && out[k].kind <= NVC_RM_RESET);
    }
    free(log.records);
    return 0;
}
