/* Calls to the resource manager, as a CUDA program makes them (driver 580, H100): four groups with 20 channels in all, of
 * which one computes, each scheduled once, and one timeslice set. All are plain ioctl(2): tracers see them. */
#include "rm.h"

#include "group.h"
#include "mps.h"
#include "rm_abi.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

enum { GROUPS = 4, COMPUTE_CHANNELS = 8, COPY_CHANNELS = 4, TIMESLICE_US = 2048, FIRST = 0x5c000001 };

static uint32_t call(unsigned int number, void *data, size_t size)
{
    int result;
    do {
        result = ioctl(driver()->rm_fd, _IOC(_IOC_READ | _IOC_WRITE, 'F', number, size), data);
    } while (result != 0 && (errno == EINTR || errno == EAGAIN));
    return result == 0 ? RM_OK : RM_INVALID_STATE;
}

/* A new object; 0: there is none. */
static uint32_t make(uint32_t parent, uint32_t class, void *parameters, size_t size)
{
    struct driver *in = driver();
    struct rm_alloc alloc = {.client = in->rm_client,
                             .parent = parent,
                             .handle = in->rm_client ? FIRST + in->rm_handles++ : 0,
                             .class = class,
                             .parameters = (uintptr_t)parameters,
                             .size = (uint32_t)size};
    uint32_t status = call(RM_ALLOC, &alloc, sizeof(alloc));
    return status == RM_OK && alloc.status == RM_OK ? alloc.handle : 0;
}

static bool control(uint32_t object, uint32_t command, void *parameters, size_t size)
{
    struct rm_control wanted = {.client = driver()->rm_client,
                                .object = object,
                                .command = command,
                                .parameters = (uintptr_t)parameters,
                                .size = (uint32_t)size};
    return call(RM_CONTROL, &wanted, sizeof(wanted)) == RM_OK && wanted.status == RM_OK;
}

static void drop(uint32_t parent, uint32_t handle)
{
    struct rm_free wanted = {driver()->rm_client, parent, handle, 0};
    call(RM_FREE, &wanted, sizeof(wanted));
}

static bool make_group(uint32_t device, uint32_t engine, uint32_t channels, uint32_t *group)
{
    struct rm_group wanted = {.engine = engine};
    uint8_t on[3] = {1, 0, 0};
    uint32_t token;
    *group = make(device, CLASS_GROUP, &wanted, sizeof(wanted));
    for (uint32_t i = 0; *group && i < channels; i++) {
        uint32_t channel = make(*group, CLASS_CHANNEL, NULL, 0);
        if (!channel || !control(channel, CMD_WORK_TOKEN, &token, sizeof(token)))
            return false;
    }
    return *group && control(*group, CMD_GROUP_SCHEDULE, on, sizeof(on));
}

/* The first context's client is the process's. */
static bool open_client(struct driver *in)
{
    if (in->rm_contexts)
        return true;
    in->rm_client = 0;
    in->rm_client = make(0, CLASS_CLIENT, NULL, 0);
    return in->rm_client != 0;
}

static bool make_objects(struct context *context)
{
    const struct driver *in = driver();
    struct rm_device wanted = {.id = (uint32_t)(context->device->gpu - in->root.description.gpus)};
    uint64_t timeslice = TIMESLICE_US;
    uint32_t subdevice = 0, group, copies;
    context->rm_device = make(in->rm_client, CLASS_DEVICE, &wanted, sizeof(wanted));
    if (!context->rm_device || !make(context->rm_device, CLASS_SUBDEVICE, &subdevice, sizeof(subdevice)) ||
        !make_group(context->rm_device, ENGINE_GRAPHICS, COMPUTE_CHANNELS, &group) ||
        !control(group, CMD_SET_TIMESLICE, &timeslice, sizeof(timeslice)))
        return false;
    for (uint32_t i = 1; i < GROUPS; i++)
        if (!make_group(context->rm_device, ENGINE_COPY + i - 1, COPY_CHANNELS, &copies))
            return false;
    context->rm_id = (uint64_t)in->rm_client << 32 | group;
    context->rm_group = sim_group_find(&in->state->rm, context->rm_id);
    context->rm_served = atomic_load(&in->state->rm.served);
    return context->rm_group < SIM_GROUPS;
}

CUresult rm_begin(struct context *context)
{
    struct driver *in = driver();
    char path[SIM_MAX_PATH];
    context->rm_group = SIM_GROUPS;
    if (context->device->mig || in->mps || !sim_root_join(&in->root, RM_CONTROL_FILE, path))
        return CUDA_SUCCESS;
    if (!in->rm_contexts)
        in->rm_fd = open(path, O_RDWR | O_CLOEXEC);
    if (in->rm_fd < 0)
        return CUDA_SUCCESS;
    bool made = open_client(in);
    in->rm_contexts++;
    if (made && make_objects(context))
        return CUDA_SUCCESS;
    rm_end(context);
    return CUDA_ERROR_OPERATING_SYSTEM;
}

void rm_end(struct context *context)
{
    struct driver *in = driver();
    if (context->rm_device)
        drop(in->rm_client, context->rm_device);
    context->rm_device = 0;
    context->rm_group = SIM_GROUPS;
    if (!in->rm_contexts || --in->rm_contexts)
        return;
    if (in->rm_client)
        drop(in->rm_client, in->rm_client);
    close(in->rm_fd);
}
