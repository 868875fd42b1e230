/* Clients and the tree of objects that each has. */
#include "server.h"

#include <stdlib.h>
#include <sys/random.h>

enum { FIRST_HANDLE = 0x5c000001 };

struct client *client_find(struct server *server, uint32_t handle)
{
    struct client *client = server->clients;
    while (client && client->handle != handle)
        client = client->next;
    return client;
}

struct client *client_of(const struct call *call, uint32_t handle)
{
    struct client *client = client_find(call->server, handle);
    return client && client->file == call->file ? client : NULL;
}

struct object *object_find(const struct client *client, uint32_t handle)
{
    struct object *object = client->objects;
    while (object && object->handle != handle)
        object = object->next;
    return object;
}

void memory_drop(struct memory *memory)
{
    if (!memory || --memory->references)
        return;
    free(memory->bytes);
    free(memory);
}

/* Unlike any that another server of this host has given: the table of a tracer has all of them. */
static uint32_t draw_client(struct server *server)
{
    uint32_t handle = 0;
    while ((handle & 0x3fffffff) == 0 || client_find(server, handle)) {
        if (getrandom(&handle, sizeof(handle), 0) != sizeof(handle))
            return 0;
        handle |= 0xc0000000;
    }
    return handle;
}

static uint32_t client_alloc(struct call *call, struct rm_alloc *alloc)
{
    struct server *server = call->server;
    struct client *client = calloc(1, sizeof(*client));
    uint32_t handle = alloc->handle ? alloc->handle : draw_client(server);
    if (!client || !handle || client_find(server, handle)) {
        free(client);
        return handle ? RM_INSERT_DUPLICATE_NAME : RM_NO_MEMORY;
    }
    client->handle = alloc->handle = handle;
    client->file = call->file;
    client->pid = caller_process(call);
    client->next_handle = FIRST_HANDLE;
    client->next = server->clients;
    server->clients = client;
    if (alloc->parameters && !caller_write(call, alloc->parameters, &handle, sizeof(handle)))
        return RM_INVALID_POINTER;
    return RM_OK;
}

static uint32_t device_begin(struct call *call, struct object *object, const struct rm_alloc *alloc)
{
    struct rm_device wanted;
    if (!caller_read(call, alloc->parameters, &wanted, sizeof(wanted)))
        return RM_INVALID_POINTER;
    object->gpu = wanted.id;
    return wanted.id < call->server->root.description.gpu_count ? RM_OK : RM_INVALID_DEVICE;
}

static uint32_t memory_begin(struct call *call, struct object *object, const struct rm_alloc *alloc)
{
    struct rm_memory wanted;
    if (!caller_read(call, alloc->parameters, &wanted, sizeof(wanted)))
        return RM_INVALID_POINTER;
    if (!wanted.size || wanted.size > RM_FILE_SIZE)
        return RM_INVALID_ARGUMENT;
    struct memory *memory = calloc(1, sizeof(*memory));
    uint8_t *bytes = calloc(1, wanted.size);
    if (!memory || !bytes) {
        free(memory);
        free(bytes);
        return RM_NO_MEMORY;
    }
    *memory = (struct memory){.references = 1, .size = wanted.size, .bytes = bytes};
    object->memory = memory;
    return RM_OK;
}

static struct memory *memory_of(const struct client *client, uint32_t handle)
{
    const struct object *object = object_find(client, handle);
    return object ? object->memory : NULL;
}

/* 580 reads through a null pointer for a buffer that names no subdevice. */
static uint32_t buffer_begin(struct call *call, struct object *object, const struct client *client,
                             const struct rm_alloc *alloc)
{
    struct rm_buffer wanted;
    if (!caller_read(call, alloc->parameters, &wanted, sizeof(wanted)))
        return RM_INVALID_POINTER;
    const struct object *subdevice = object_find(client, wanted.subdevice);
    struct memory *header = memory_of(client, wanted.header_memory),
                  *records = memory_of(client, wanted.record_memory);
    if (!subdevice || subdevice->class != CLASS_SUBDEVICE || !header || !records)
        return RM_INVALID_OBJECT_HANDLE;
    if (wanted.record_size != sizeof(struct rm_log_record) || wanted.record_count < 2 ||
        wanted.record_count > records->size / sizeof(struct rm_log_record) ||
        header->size < sizeof(struct rm_log_header))
        return RM_INVALID_ARGUMENT;
    struct buffer *buffer = calloc(1, sizeof(*buffer));
    if (!buffer)
        return RM_NO_MEMORY;
    *buffer = (struct buffer){
        .header = header, .records = records, .gpu = subdevice->gpu, .count = wanted.record_count};
    header->references++;
    records->references++;
    object->buffer = buffer;
    return RM_OK;
}

static bool is_channel(uint32_t class)
{
    return class > 0xa000 && (class & 0xff) == 0x6f;
}

static uint32_t begin(struct call *call, struct client *client, struct object *object, struct object *parent,
                      const struct rm_alloc *alloc)
{
    uint32_t above = parent ? parent->class : 0;
    struct rm_group wanted;
    if (parent)
        object->gpu = parent->gpu;
    switch (object->class) {
    case CLASS_DEVICE:
        return parent ? RM_INVALID_OBJECT_PARENT : device_begin(call, object, alloc);
    case CLASS_SUBDEVICE:
        return above == CLASS_DEVICE ? RM_OK : RM_INVALID_OBJECT_PARENT;
    case CLASS_DEVICELESS:
        return parent ? RM_INVALID_OBJECT_PARENT : memory_begin(call, object, alloc);
    case CLASS_BUFFER:
        return parent ? RM_INVALID_OBJECT_PARENT : buffer_begin(call, object, client, alloc);
    case CLASS_GROUP:
        if (above != CLASS_DEVICE)
            return RM_INVALID_OBJECT_PARENT;
        if (!caller_read(call, alloc->parameters, &wanted, sizeof(wanted)))
            return RM_INVALID_POINTER;
        return group_begin(call, object, client, wanted.engine);
    }
    if (!is_channel(object->class))
        return RM_NOT_SUPPORTED;
    if (above != CLASS_GROUP && above != CLASS_DEVICE)
        return RM_INVALID_OBJECT_PARENT;
    object->in = above == CLASS_GROUP ? parent : NULL;
    return RM_OK;
}

uint32_t object_alloc(struct call *call, struct rm_alloc *alloc)
{
    if (alloc->class <= 1 || alloc->class == CLASS_CLIENT)
        return client_alloc(call, alloc);
    struct client *client = client_of(call, alloc->client);
    if (!client)
        return RM_INVALID_CLIENT;
    struct object *parent = alloc->parent == client->handle ? NULL : object_find(client, alloc->parent);
    if (!parent && alloc->parent != client->handle)
        return RM_INVALID_OBJECT_PARENT;
    if (!alloc->handle) {
        while (object_find(client, client->next_handle))
            client->next_handle++;
        alloc->handle = client->next_handle++;
    }
    if (alloc->handle == client->handle || object_find(client, alloc->handle))
        return RM_INSERT_DUPLICATE_NAME;
    struct object *object = calloc(1, sizeof(*object));
    if (!object)
        return RM_NO_MEMORY;
    object->handle = alloc->handle;
    object->parent = alloc->parent;
    object->class = alloc->class;
    object->group = SIM_GROUPS;
    uint32_t status = begin(call, client, object, parent, alloc);
    if (status != RM_OK) {
        free(object);
        return status;
    }
    object->next = client->objects;
    client->objects = object;
    if (object->in)
        group_count(call->server, client, object->in, clock_now(call->server));
    return RM_OK;
}

static void object_end(struct server *server, struct client *client, struct object *object)
{
    for (struct object **at = &client->objects; *at; at = &(*at)->next)
        if (*at == object) {
            *at = object->next;
            break;
        }
    if (object->in)
        group_count(server, client, object->in, clock_now(server));
    if (object->class == CLASS_GROUP)
        group_end(server, object);
    memory_drop(object->memory);
    if (object->buffer) {
        memory_drop(object->buffer->header);
        memory_drop(object->buffer->records);
        free(object->buffer);
    }
    free(object);
}

/* Children first. */
static void tree_end(struct server *server, struct client *client, uint32_t handle)
{
    for (;;) {
        struct object *child = client->objects;
        while (child && child->parent != handle)
            child = child->next;
        if (!child)
            break;
        tree_end(server, client, child->handle);
    }
    struct object *object = object_find(client, handle);
    if (object)
        object_end(server, client, object);
}

static void client_end(struct server *server, struct client *client)
{
    for (struct client **at = &server->clients; *at; at = &(*at)->next)
        if (*at == client) {
            *at = client->next;
            break;
        }
    tree_end(server, client, client->handle);
    free(client);
}

uint32_t object_free(struct call *call, const struct rm_free *wanted)
{
    struct client *client = client_of(call, wanted->client);
    if (!client)
        return RM_INVALID_CLIENT;
    if (wanted->handle == client->handle)
        client_end(call->server, client);
    else if (object_find(client, wanted->handle))
        tree_end(call->server, client, wanted->handle);
    else
        return RM_OBJECT_NOT_FOUND;
    return RM_OK;
}

void clients_free(struct server *server, uint64_t file)
{
    for (struct client *client = server->clients, *next; client; client = next) {
        next = client->next;
        if (file == UINT64_MAX || client->file == file)
            client_end(server, client);
    }
}
