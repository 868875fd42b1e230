#pragma once

#include "charge/charge.h"

struct piece {
    uint64_t from, to;
    CUdevice ordinal;
};

struct footprint {
    struct piece *pieces;
    size_t count, room;
};

/* What the memory nodes of a graph need, and of those in it, in the order of devices and addresses. What cannot be found
 * out is an error, and the graph is not instantiated. The caller frees `pieces` in any case. */
CUresult footprint_measure(struct footprint *in, CUgraph graph);
