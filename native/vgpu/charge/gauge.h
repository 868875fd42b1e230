/* Memory that the driver keeps as it sees fit, and tells the amount of: pools and the memory of graphs. */
#pragma once

#include "items.h"

/* Starts to watch; what it holds already is charged. False: there is no room in the books. */
bool gauge_watch(enum kind kind, uint64_t key, int position);

/* Reads it and charges or refunds the difference, limit or not. Returns by how much it grew or, below 0, shrank. */
int64_t gauge_read(enum kind kind, uint64_t key);

/* All of one device; true: some shrank. */
bool gauges_read(int position);
