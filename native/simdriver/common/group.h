/* What the shared state says about channel groups: when they are stopped, and who has a partition from when to when. */
#pragma once

#include "state.h"

/* Whether the group is stopped at `time`, and when that changes: `next`, UINT64_MAX if nobody has said so yet. */
bool sim_group_is_stopped(const struct sim_group *group, uint64_t time, uint64_t *next);

/* Since when it is as it is at `time`; 0: it was always. */
uint64_t sim_group_since(const struct sim_group *group, uint64_t time);

/* From `time` on, or from the last change on if that is later. Written by the resource manager alone. */
void sim_group_change(struct sim_group *group, bool stopped, uint64_t time);

/* The number of the group with this id; SIM_GROUPS: there is none. */
uint32_t sim_group_find(const struct sim_rm *rm, uint64_t id);

/* From `begin` on a group has the partition (SIM_GROUPS: one that is not known); who had it had it until `end`. */
void sim_active_set(struct sim_rm *rm, uint32_t partition, uint32_t group, uint64_t end, uint64_t begin);

/* A group has the partition no longer, if it had it until now. */
void sim_active_end(struct sim_rm *rm, uint32_t partition, uint32_t group, uint64_t end);
