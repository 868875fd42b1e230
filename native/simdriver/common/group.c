#include "group.h"

bool sim_group_is_stopped(const struct sim_group *group, uint64_t time, uint64_t *next)
{
    uint32_t count = atomic_load(&group->changes), oldest = count > SIM_CHANGES ? count - SIM_CHANGES : 0;
    bool before = false;
    *next = UINT64_MAX;
    for (uint32_t i = count; i-- > oldest;) {
        uint64_t change = atomic_load(&group->changed_at[i % SIM_CHANGES]);
        if (change >> 1 <= time)
            return change & 1;
        *next = change >> 1;
        before = !(change & 1);
    }
    return before;
}

uint64_t sim_group_since(const struct sim_group *group, uint64_t time)
{
    uint32_t count = atomic_load(&group->changes), oldest = count > SIM_CHANGES ? count - SIM_CHANGES : 0;
    for (uint32_t i = count; i-- > oldest;) {
        uint64_t change = atomic_load(&group->changed_at[i % SIM_CHANGES]) >> 1;
        if (change <= time)
            return change;
    }
    return 0;
}

void sim_group_change(struct sim_group *group, bool stopped, uint64_t time)
{
    uint32_t count = atomic_load(&group->changes);
    uint64_t last = count ? atomic_load(&group->changed_at[(count - 1) % SIM_CHANGES]) >> 1 : 0;
    atomic_store(&group->changed_at[count % SIM_CHANGES], (time > last ? time : last) << 1 | stopped);
    atomic_store(&group->changes, count + 1);
}

uint32_t sim_group_find(const struct sim_rm *rm, uint64_t id)
{
    uint32_t group = 0;
    while (group < SIM_GROUPS && atomic_load(&rm->groups[group].id) != id)
        group++;
    return group;
}

static void add(struct sim_rm *rm, uint32_t partition, bool begins, uint32_t group, uint64_t time)
{
    uint64_t number = atomic_fetch_add(&rm->regions_written, 1);
    struct sim_region *region = &rm->regions[number % SIM_REGIONS];
    atomic_store(&region->number, 0);
    atomic_store(&region->time, time);
    atomic_store(&region->partition, partition);
    atomic_store(&region->begins, begins);
    atomic_store(&region->pid, atomic_load(&rm->groups[group].pid));
    atomic_store(&region->group, group);
    atomic_store(&region->number, number + 1);
}

/* Of what a stopped group has, nothing lies behind the stop: it may have been idle, or on its way to the GPU. */
static uint64_t bounded(const struct sim_group *group, uint64_t end)
{
    uint64_t next;
    return sim_group_is_stopped(group, end, &next) ? sim_group_since(group, end) : end;
}

void sim_active_set(struct sim_rm *rm, uint32_t partition, uint32_t group, uint64_t end, uint64_t begin)
{
    uint32_t mine = group < SIM_GROUPS ? group + 1 : 0,
             before = atomic_exchange(&rm->active[partition], mine);
    if (before == mine)
        return;
    if (before && before <= SIM_GROUPS)
        add(rm, partition, false, before - 1, bounded(&rm->groups[before - 1], end));
    if (mine)
        add(rm, partition, true, group, bounded(&rm->groups[group], begin));
}

void sim_active_end(struct sim_rm *rm, uint32_t partition, uint32_t group, uint64_t end)
{
    uint32_t mine = group + 1;
    if (atomic_compare_exchange_strong(&rm->active[partition], &mine, 0))
        add(rm, partition, false, group, bounded(&rm->groups[group], end));
}
