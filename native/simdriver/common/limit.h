/* Limits of GPU memory by cgroup, which the driver has from version 615 on and keeps in the kernel. The simulated
 * one keeps them in libcuda: for any program that loads it, by whatever name, in whatever container. */
#pragma once

#include "state.h"

#define SIM_NO_LIMIT UINT64_MAX

enum { SIM_LIMITS_SINCE = 615 }; /* major number of the driver's version */

/* Whether the driver of this description has them. */
bool sim_has_limits(const struct sim_description *description);

/* The kernel's number of this process's cgroup of version 2, 0 where it does not say (before Linux 6.13). */
uint64_t sim_own_cgroup(void);

/* The hard limit that binds this process on a partition: that of its cgroup, else of the nearest one above, which
 * `leaf` leaves out: the driver shows programs a limit only where it is their own cgroup's. NULL: none. */
const struct sim_limit *sim_own_limit(const struct sim_state *state, uint32_t partition, bool leaf);

/* Bytes of `partition` that living processes hold of which `cgroup` was charged. `self`: see sim_partition_bytes. */
uint64_t sim_cgroup_bytes(const struct sim_state *state, int fd, uint32_t self, uint64_t cgroup,
                          uint32_t partition);

/* Sets the limits of the cgroup with this directory, and adds what its soft limit rises by to that of each cgroup
 * above it, as the driver does. Under the ledger's lock. Returns 0 or an errno: ENOENT for no cgroup, or the root. */
int sim_limit_set(struct sim_state *state, uint32_t partition, const char *path, uint64_t soft,
                  uint64_t hard);

/* The entry of the cgroup with this directory, NULL where it has none. `*cgroup` is its number, 0: no cgroup. */
const struct sim_limit *sim_limit_get(const struct sim_state *state, uint32_t partition, const char *path,
                                      uint64_t *cgroup);
