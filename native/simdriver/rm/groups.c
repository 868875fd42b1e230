/* Channel groups: who may run, and for how long at a time. */
#include "server.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { COMPUTE_US = 2048, COPY_US = 1024, MOST_US = 10000000 };

static struct sim_group *shared(struct server *server, const struct object *group)
{
    return group->group < SIM_GROUPS ? &server->state->rm.groups[group->group] : NULL;
}

/* The slot of a process, + 1; 0: it has none. */
static uint32_t slot_of(const struct server *server, pid_t pid)
{
    uint32_t used = atomic_load(&server->state->slots_used);
    for (uint32_t slot = 0; slot < used && slot < SIM_SLOTS; slot++)
        if (sim_slot_pid(server->state, server->state_fd, slot) == (uint32_t)pid)
            return slot + 1;
    return 0;
}

uint32_t group_begin(struct call *call, struct object *group, const struct client *client, uint32_t engine)
{
    struct server *server = call->server;
    struct sim_rm *rm = &server->state->rm;
    group->timeslice = engine <= ENGINE_GRAPHICS_LAST ? COMPUTE_US : COPY_US;
    if (engine > ENGINE_GRAPHICS_LAST)
        return RM_OK;
    uint32_t free = sim_group_find(rm, 0);
    if (free == SIM_GROUPS)
        return RM_INSUFFICIENT_RESOURCES;
    struct sim_group *to = &rm->groups[free];
    group->group = free;
    atomic_store(&to->pid, (uint32_t)client->pid);
    atomic_store(&to->slot, slot_of(server, client->pid));
    atomic_store(&to->partition, sim_partition_of(group->gpu, -1));
    atomic_store(&to->timeslice, group->timeslice);
    atomic_store(&to->channels, 0);
    atomic_store(&to->stopped, 0);
    atomic_store(&to->changes, 0);
    atomic_store(&to->id, (uint64_t)client->handle << 32 | group->handle);
    return RM_OK;
}

void group_end(struct server *server, struct object *group)
{
    struct sim_group *to = shared(server, group);
    if (!to)
        return;
    sim_active_end(&server->state->rm, atomic_load(&to->partition), group->group, clock_now(server));
    atomic_store(&to->id, 0);
}

/* A group is stopped when all of its channels are. */
void group_count(struct server *server, const struct client *client, struct object *group, uint64_t time)
{
    struct sim_group *to = shared(server, group);
    uint32_t channels = 0, stopped = 0;
    uint64_t next;
    if (!to)
        return;
    for (const struct object *one = client->objects; one; one = one->next)
        if (one->in == group) {
            channels++;
            stopped += one->stopped;
        }
    atomic_store(&to->channels, channels);
    atomic_store(&to->stopped, stopped);
    bool after = channels && stopped == channels;
    if (after == sim_group_is_stopped(to, UINT64_MAX >> 1, &next))
        return;
    uint64_t now = clock_now(server);
    if (!after && sim_group_is_stopped(to, now, &next)) /* it had nothing to do, and did not notice */
        sim_active_end(&server->state->rm, atomic_load(&to->partition), group->group,
                       sim_group_since(to, now));
    sim_group_change(to, after, time);
    syscall(SYS_futex, &server->state->partitions[atomic_load(&to->partition)].turn, FUTEX_WAKE, INT_MAX,
            NULL, NULL, 0);
}

/* Any client may name those of others. A list with one that is not there is done for the rest. */
uint32_t channels_disable(struct call *call, struct rm_disable *list)
{
    struct server *server = call->server;
    uint32_t status = RM_OK;
    if (list->event)
        return RM_INSUFFICIENT_PERMISSIONS;
    if (list->count > 64)
        return RM_INVALID_ARGUMENT;
    uint64_t time = clock_now(server) + (list->disable ? SIM_STOP_NS : SIM_START_NS);
    for (uint32_t i = 0; i < list->count; i++) {
        struct client *client = client_find(server, list->clients[i]);
        struct object *channel = client ? object_find(client, list->channels[i]) : NULL;
        if (!channel || (channel->class & 0xff) != 0x6f) {
            status = RM_INVALID_CHANNEL;
            continue;
        }
        channel->stopped = list->disable != 0;
        if (channel->in)
            group_count(server, client, channel->in, time);
    }
    call->until = time;
    return status;
}

uint32_t timeslice_set(struct server *server, struct object *group, uint64_t microseconds)
{
    struct sim_group *to = shared(server, group);
    if (!microseconds || microseconds > MOST_US)
        return RM_INVALID_ARGUMENT;
    group->timeslice = (uint32_t)microseconds;
    if (to)
        atomic_store(&to->timeslice, group->timeslice);
    return RM_OK;
}
