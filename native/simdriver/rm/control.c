/* RM_CONTROL and RM_MAP_MEMORY. */
#include "server.h"

#include <stdio.h>
#include <string.h>

static uint32_t id_of(const struct sim_gpu *gpu)
{
    return gpu->pci_domain << 16 | gpu->pci_bus << 8 | gpu->pci_device;
}

static uint32_t attached(const struct server *server, uint32_t ids[32])
{
    for (uint32_t i = 0; i < 32; i++)
        ids[i] =
            i < server->root.description.gpu_count ? id_of(&server->root.description.gpus[i]) : UINT32_MAX;
    return RM_OK;
}

/* SIM_MAX_GPUS: none. */
static uint32_t gpu_with(const struct server *server, uint32_t id)
{
    for (uint32_t i = 0; i < server->root.description.gpu_count; i++)
        if (id_of(&server->root.description.gpus[i]) == id)
            return i;
    return SIM_MAX_GPUS;
}

static uint32_t id_info(const struct server *server, struct rm_id_info *info)
{
    uint32_t gpu = gpu_with(server, info->id);
    if (gpu == SIM_MAX_GPUS)
        return RM_INVALID_ARGUMENT;
    *info =
        (struct rm_id_info){.id = info->id, .device = gpu, .board = info->id, .instance = gpu, .node = -1};
    return RM_OK;
}

/* FORMAT, bits 0 and 1 of the flags: 0 is text, 2 are the bytes. Returns how many it wrote. */
static uint32_t uuid(const char *text, uint32_t flags, uint8_t out[256])
{
    memset(out, 0, 256);
    if ((flags & 3) != 2) {
        memcpy(out, text, strlen(text) + 1);
        return (uint32_t)strlen(text) + 1;
    }
    uint32_t count = 0;
    for (const char *at = strchr(text, '-'); at && *at && count < 16;) {
        unsigned int byte;
        at += *at == '-';
        if (sscanf(at, "%2x", &byte) != 1)
            break;
        out[count++] = (uint8_t)byte;
        at += 2;
    }
    return count;
}

static uint32_t uuid_of_id(const struct server *server, struct rm_uuid *to)
{
    uint32_t gpu = gpu_with(server, to->id);
    if (gpu == SIM_MAX_GPUS)
        return RM_INVALID_ARGUMENT;
    to->length = uuid(server->root.description.gpus[gpu].uuid, to->flags, to->uuid);
    return RM_OK;
}

static uint32_t bind(const struct call *call, const struct client *client, const struct object *subdevice,
                     struct rm_bind *wanted)
{
    const struct object *object = object_find(client, wanted->buffer);
    struct buffer *buffer = object ? object->buffer : NULL;
    wanted->reason = 0;
    if (!buffer)
        return RM_INVALID_OBJECT_HANDLE;
    if (wanted->record_size != sizeof(struct rm_log_record) - 8 || buffer->gpu != subdevice->gpu)
        return RM_INVALID_ARGUMENT;
    if (call->user != 0) {
        wanted->reason = 4; /* NEED_ADMIN */
        return RM_INSUFFICIENT_PERMISSIONS;
    }
    buffer->bound = true;
    return RM_OK;
}

static uint32_t enable(struct buffer *buffer, const uint32_t words[2])
{
    bool on = words[0] & 0xff;
    if (on && words[1] != 1) /* KEEP_OLDEST */
        return RM_INVALID_ARGUMENT;
    buffer->enabled = on;
    return RM_OK;
}

static uint32_t move_get(struct buffer *buffer, const uint32_t words[2])
{
    if (words[0] >= buffer->count)
        return RM_INVALID_ARGUMENT;
    buffer->get = words[0];
    buffer->dropped = 0;
    buffer->news = true;
    return RM_OK;
}

union parameters {
    uint32_t ids[32], words[2];
    uint64_t number;
    struct rm_id_info info;
    struct rm_uuid uuid;
    struct rm_gid gid;
    struct rm_disable disable;
    struct rm_bind bind;
};

/* How long the parameters of a command are, and the class of object that it is for; 0: nothing that we know. */
static uint32_t size_of(uint32_t command, uint32_t *class)
{
    *class = command >> 16;
    switch (command) {
    case CMD_ATTACHED:
        return 128;
    case CMD_ID_INFO:
        return sizeof(struct rm_id_info);
    case CMD_UUID:
        return sizeof(struct rm_uuid);
    case CMD_GID_INFO:
        return sizeof(struct rm_gid);
    case CMD_GET_TIME:
    case CMD_SET_TIMESLICE:
    case CMD_GET_TIMESLICE:
    case CMD_ENABLE_EVENTS:
    case CMD_UPDATE_GET:
    case CMD_GROUP_PREEMPT:
        return 8;
    case CMD_DISABLE_CHANNELS:
        return sizeof(struct rm_disable);
    case CMD_BIND:
        return sizeof(struct rm_bind);
    case CMD_GROUP_SCHEDULE:
    case CMD_CHANNEL_SCHEDULE:
        return 3;
    case CMD_WORK_TOKEN:
        return 4;
    }
    return 0;
}

static uint32_t answer(struct call *call, const struct client *client, struct object *object,
                       uint32_t command, union parameters *with)
{
    struct server *server = call->server;
    switch (command) {
    case CMD_ATTACHED:
        return attached(server, with->ids);
    case CMD_ID_INFO:
        return id_info(server, &with->info);
    case CMD_UUID:
        return uuid_of_id(server, &with->uuid);
    case CMD_GID_INFO:
        with->gid.length =
            uuid(server->root.description.gpus[object->gpu].uuid, with->gid.flags, with->gid.gid);
        return RM_OK;
    case CMD_GET_TIME:
        with->number = clock_now(server) + RM_TIMER_AHEAD_NS;
        return RM_OK;
    case CMD_DISABLE_CHANNELS:
        return channels_disable(call, &with->disable);
    case CMD_BIND:
        return bind(call, client, object, &with->bind);
    case CMD_SET_TIMESLICE:
        return timeslice_set(server, object, with->number);
    case CMD_GET_TIMESLICE:
        with->number = object->timeslice;
        return RM_OK;
    case CMD_ENABLE_EVENTS:
        return enable(object->buffer, with->words);
    case CMD_UPDATE_GET:
        call->publish = true;
        return move_get(object->buffer, with->words);
    case CMD_WORK_TOKEN:
        with->words[0] = object->handle;
        return RM_OK;
    }
    return RM_OK; /* scheduled, preempted: neither starts what is stopped */
}

static bool is_for(const struct object *object, uint32_t class)
{
    if (class == 0)
        return !object;
    if ((class & 0xff) == 0x6f)
        return object && object->class > 0xa000 && (object->class & 0xff) == 0x6f;
    return object && object->class == class;
}

uint32_t control(struct call *call, const struct rm_control *wanted)
{
    union parameters with;
    const struct client *client = client_of(call, wanted->client);
    uint32_t class, size = size_of(wanted->command, &class);
    if (!client)
        return RM_INVALID_CLIENT;
    struct object *object = wanted->object == client->handle ? NULL : object_find(client, wanted->object);
    if (!object && wanted->object != client->handle)
        return RM_INVALID_OBJECT_HANDLE;
    if (wanted->command == CMD_FLUSH && is_for(object, CLASS_BUFFER)) {
        call->flush = true;
        return RM_OK;
    }
    if (!size || !is_for(object, class))
        return RM_NOT_SUPPORTED;
    if (wanted->size != size)
        return RM_INVALID_PARAM_STRUCT;
    memset(&with, 0, sizeof(with));
    if (!caller_read(call, wanted->parameters, &with, size))
        return RM_INVALID_POINTER;
    uint32_t status = answer(call, client, object, wanted->command, &with);
    return caller_write(call, wanted->parameters, &with, size) ? status : RM_INVALID_POINTER;
}

uint32_t memory_map(struct call *call, struct rm_map *map)
{
    const struct client *client = client_of(call, map->client);
    if (!client)
        return RM_INVALID_CLIENT;
    const struct object *object = object_find(client, map->memory);
    struct node *node = node_find(call->server, caller_inode(call, map->fd));
    if (!object || !object->memory)
        return RM_INVALID_OBJECT_HANDLE;
    if ((map->flags & 3) != 1) /* ACCESS: it is for reading only */
        return RM_INVALID_ACCESS_TYPE;
    if (!node || node->faults || map->offset || map->length > (object->memory->size + 4095) / 4096 * 4096)
        return RM_INVALID_ARGUMENT;
    if (node->memory)
        return RM_INVALID_STATE;
    node->memory = object->memory;
    node->memory->references++;
    map->address = 0;
    return RM_OK;
}
