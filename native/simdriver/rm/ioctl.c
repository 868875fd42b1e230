#include "server.h"

#include <errno.h>
#include <string.h>

static uint32_t alloc(struct call *call, struct rm_alloc *wanted)
{
    uint32_t status = faults_status(call->server, wanted->class);
    return status ? status : object_alloc(call, wanted);
}

static int allocate(struct call *call, void *data, size_t size)
{
    struct rm_alloc wanted;
    struct rm_alloc_rights *rights = data;
    memcpy(&wanted, data, sizeof(wanted));
    if (size == sizeof(*rights))
        wanted.size = rights->size;
    else if (size != sizeof(wanted))
        return EINVAL;
    uint32_t status = alloc(call, &wanted);
    if (size == sizeof(*rights)) {
        rights->handle = wanted.handle;
        rights->status = status;
    } else {
        wanted.status = status;
        memcpy(data, &wanted, sizeof(wanted));
    }
    return 0;
}

static int answer(struct call *call, unsigned int number, void *data, size_t size)
{
    struct rm_control *command = data;
    struct rm_free *end = data;
    struct rm_map *map = data;
    if (number == RM_ALLOC && size >= sizeof(struct rm_alloc))
        return allocate(call, data, size);
    if (number == RM_CONTROL && size == sizeof(*command)) {
        uint32_t status = faults_status(call->server, command->command);
        command->status = status ? status : control(call, command);
    } else if (number == RM_FREE && size == sizeof(*end)) {
        end->status = object_free(call, end);
    } else if (number == RM_MAP_MEMORY && size == sizeof(*map)) {
        uint32_t status = faults_status(call->server, CLASS_DEVICELESS);
        map->status = status ? status : memory_map(call, map);
    } else if (number == RM_UNMAP && size == sizeof(struct rm_unmap)) {
        ((struct rm_unmap *)data)->status = RM_OK; /* munmap(2) has done it */
    } else {
        return EINVAL;
    }
    return 0;
}

int ioctl_answer(struct call *call, unsigned int request, void *data, size_t size)
{
    struct server *server = call->server;
    if (_IOC_TYPE(request) != 'F')
        return EINVAL;
    pthread_mutex_lock(&server->lock);
    int error = answer(call, _IOC_NR(request), data, size);
    pthread_mutex_unlock(&server->lock);
    if (call->flush || call->publish)
        log_update(server, call->flush);
    clock_wait(server, call->until);
    return error;
}
