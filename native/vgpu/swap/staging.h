/* Memory of the host for what leaves the device: the process's own, so that its cgroup is charged, and nobody else ever sees
 * it. It is populated and registered once, and kept: that takes longer than to copy. */
#pragma once

#include "process/system.h"

/* At least so many bytes; NULL: there are none. A context is current. */
char *staging_get(uint64_t bytes);
void staging_free(void);
uint64_t staging_size(void);

/* A thread, by a C library of whatever age. False: it has none. */
bool thread_start(uint64_t *id, void *(*work)(void *), void *data);
void thread_join(uint64_t id);
