/* Captures of streams into graphs. */
#pragma once

#include "engine.h"
#include "graph.h"
#include "stream.h"

enum { MODE_GLOBAL, MODE_THREAD_LOCAL, MODE_RELAXED };
enum { STATUS_NONE, STATUS_ACTIVE, STATUS_INVALIDATED };

struct capture {
    struct graph *graph;
    struct stream *origin;
    uint64_t id, thread;
    int mode;
    bool invalid, is_callers_graph;
};

/* What the next operation of a stream depends on. */
CUresult frontier_set(struct stream *stream, struct node **nodes, size_t count);
CUresult frontier_extend(struct stream *stream, struct node *const *nodes, size_t count);
