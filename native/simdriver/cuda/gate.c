/* What the resource manager says about this process's time: stops and timeslices of its groups.
 *
 * A process has one turn for all of its contexts on a device: it is stopped when the groups of all that have work are, and
 * its turn is as long as theirs together. */
#include "rm.h"

#include "engine.h"
#include "group.h"
#include "order.h"

enum { LOOK_NS = 500000, LOOK_ALONE_NS = 2000000 };

/* A group of a server that has ended binds nobody. */
static struct sim_group *group_of(const struct context *context)
{
    struct sim_rm *rm = &driver()->state->rm;
    if (context->rm_group >= SIM_GROUPS || atomic_load(&rm->served) != context->rm_served)
        return NULL;
    return &rm->groups[context->rm_group];
}

bool gate_is_lost(const struct context *context)
{
    const struct sim_group *group = group_of(context);
    return group && atomic_load(&group->id) != context->rm_id;
}

/* The next context of the device that has a group. */
static const struct context *next_of(const struct device *device, const struct context *context)
{
    while (context && (context->device != device || !group_of(context) || gate_is_lost(context)))
        context = context->next;
    return context;
}

static bool has_groups(const struct device *device)
{
    return next_of(device, driver()->contexts) != NULL;
}

static bool has_work(const struct context *context)
{
    for (const struct stream *stream = context->device->streams; stream; stream = stream->next)
        if (stream->context == context && stream->head)
            return true;
    return false;
}

/* Of those with work, or of all. */
static bool is_open(const struct device *device, bool with_work, uint64_t time, uint64_t *next, bool *any)
{
    bool open = false;
    *next = UINT64_MAX;
    *any = false;
    for (const struct context *one = next_of(device, driver()->contexts); one;
         one = next_of(device, one->next)) {
        uint64_t change;
        if (with_work && !has_work(one))
            continue;
        *any = true;
        if (!sim_group_is_stopped(group_of(one), time, &change))
            open = true;
        *next = sooner(*next, change);
    }
    return open;
}

bool gate_is_open(const struct device *device, uint64_t time, uint64_t *next)
{
    bool any, open = is_open(device, true, time, next, &any);
    if (!any)
        open = is_open(device, false, time, next, &any);
    return open || !any;
}

uint64_t gate_opens(const struct device *device, uint64_t time)
{
    uint64_t next, from = time;
    while (!gate_is_open(device, from, &next)) {
        if (next == UINT64_MAX)
            return time;
        from = next;
    }
    return from;
}

uint64_t gate_look(struct device *device)
{
    if (!has_groups(device))
        return UINT64_MAX;
    return turn_is_wanted(device) ? LOOK_NS : LOOK_ALONE_NS;
}

static bool works(const struct context *context)
{
    const struct engine *engine = &context->device->engine;
    for (uint32_t i = 0; i < engine->running_count; i++)
        if (engine->running[i]->stream->context == context)
            return true;
    return false;
}

uint64_t gate_length(const struct device *device)
{
    uint64_t length = 0, any = 0;
    for (const struct context *one = next_of(device, driver()->contexts); one;
         one = next_of(device, one->next)) {
        any = (uint64_t)atomic_load(&group_of(one)->timeslice) * 1000;
        length += works(one) ? any : 0;
    }
    return length ? length : any;
}

void gate_switch(const struct context *context, uint64_t end, uint64_t begin)
{
    uint32_t group = group_of(context) && !gate_is_lost(context) ? context->rm_group : SIM_GROUPS;
    if (!together_is_used())
        sim_active_set(&driver()->state->rm, context->device->partition, group, end, begin);
}

void gate_stopped(const struct device *device, uint64_t end)
{
    for (const struct context *one = next_of(device, driver()->contexts); one;
         one = next_of(device, one->next))
        sim_active_end(&driver()->state->rm, device->partition, one->rm_group, end);
}
