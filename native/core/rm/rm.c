/* Clients, devices, channels and timeslices of the driver's resource manager. */
#include "rm.h"
#include "_rm.h"

#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>

static uint64_t address(const void *pointer)
{
    return (uint64_t)(uintptr_t)pointer;
}

int nvc_rm_escape(int fd, unsigned int number, void *structure, uint32_t size, const uint32_t *status)
{
    for (int tries = 0;; tries++) {
        if (ioctl(fd, _IOC(_IOC_READ | _IOC_WRITE, RM_MAGIC, number, size), structure) >= 0)
            return *status <= INT32_MAX ? (int)*status : -EBADMSG;
        if ((errno != EINTR && errno != EAGAIN) || tries == 8)
            return -errno;
    }
}

int nvc_rm_make(int fd, uint32_t root, uint32_t parent, uint32_t object, uint32_t class, void *parameters,
                uint32_t size)
{
    struct rm_alloc call = {root, parent, object, class, address(parameters), size, 0};

    return nvc_rm_escape(fd, RM_ALLOC, &call, sizeof(call), &call.status);
}

int nvc_rm_control(int fd, uint32_t client, uint32_t object, uint32_t command, void *parameters,
                   uint32_t size)
{
    struct rm_control call = {client, object, command, 0, address(parameters), size, 0};

    return nvc_rm_escape(fd, RM_CONTROL, &call, sizeof(call), &call.status);
}

int nvc_rm_client(int fd, uint32_t *client)
{
    uint32_t handle = 0;
    struct rm_alloc call = {0, 0, 0, CLASS_CLIENT, address(&handle), sizeof(handle), 0};
    int error = nvc_rm_escape(fd, RM_ALLOC, &call, sizeof(call), &call.status);

    *client = call.handle;
    return error;
}

int nvc_rm_free(int fd, uint32_t client, uint32_t parent, uint32_t object)
{
    struct rm_free call = {client, parent, object, 0};

    return nvc_rm_escape(fd, RM_FREE, &call, sizeof(call), &call.status);
}

int nvc_rm_device(int fd, uint32_t client, uint32_t instance, uint32_t device, uint32_t subdevice)
{
    struct rm_device parameters = {.id = instance};
    uint32_t index = 0; /* class/cl2080.h: NV2080_ALLOC_PARAMETERS */
    int error = nvc_rm_make(fd, client, client, device, CLASS_DEVICE, &parameters, sizeof(parameters));

    if (error)
        return error;
    error = nvc_rm_make(fd, client, device, subdevice, CLASS_SUBDEVICE, &index, sizeof(index));
    if (error)
        nvc_rm_free(fd, client, client, device);
    return error;
}

int nvc_rm_attached(int fd, uint32_t client, uint32_t *ids)
{
    memset(ids, 0xff, ATTACHED_BYTES);
    return nvc_rm_control(fd, client, client, CMD_ATTACHED, ids, ATTACHED_BYTES);
}

int nvc_rm_identify(int fd, uint32_t client, uint32_t gpu, uint32_t *instance, char *uuid)
{
    struct rm_id_info info = {.id = gpu};
    struct rm_uuid text = {.id = gpu};
    int error = nvc_rm_control(fd, client, client, CMD_ID_INFO, &info, sizeof(info));

    *instance = info.device;
    if (error)
        return error;
    error = nvc_rm_control(fd, client, client, CMD_UUID, &text, sizeof(text));
    memcpy(uuid, text.uuid, NVC_RM_UUID - 1);
    uuid[NVC_RM_UUID - 1] = '\0';
    return error;
}

int nvc_rm_disable(int fd, uint32_t client, uint32_t subdevice, int disable, uint32_t count,
                   const uint32_t *clients, const uint32_t *channels)
{
    struct rm_disable parameters = {.disable = disable != 0, .count = count};

    if (count == 0 || count > NVC_RM_CHANNELS)
        return -EINVAL;
    memcpy(parameters.clients, clients, count * sizeof(*clients));
    memcpy(parameters.channels, channels, count * sizeof(*channels));
    return nvc_rm_control(fd, client, subdevice, CMD_DISABLE_CHANNELS, &parameters, sizeof(parameters));
}

int nvc_rm_now(int fd, uint32_t client, uint32_t subdevice, uint64_t *ns)
{
    *ns = 0;
    return nvc_rm_control(fd, client, subdevice, CMD_GET_TIME, ns, sizeof(*ns));
}

int nvc_rm_set_timeslice(int fd, uint32_t client, uint32_t group, uint64_t us)
{
    return nvc_rm_control(fd, client, group, CMD_SET_TIMESLICE, &us, sizeof(us));
}

int nvc_rm_get_timeslice(int fd, uint32_t client, uint32_t group, uint64_t *us)
{
    *us = 0;
    return nvc_rm_control(fd, client, group, CMD_GET_TIMESLICE, us, sizeof(*us));
}
