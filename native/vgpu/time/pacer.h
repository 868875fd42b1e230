/* How long a device works for this process, where nobody keeps time from outside: by events behind launches.
 *
 * An event is recorded in front of the first launch on an idle device, the origin, and behind each launch. Launches of a
 * stream that follow each other share an event, which moves on with them: they are a batch. So when a batch has ended, and
 * what it took, is known without a guess. A device works for the context from the origin until all batches have ended.
 *
 * This is for honest programs: what waits for the host in a stream counts as work, and so does what no event can tell. */
#pragma once

#include "process/process.h"
#include "process/real.h"

enum { PACER_CONTEXTS = 16, PACER_STREAMS = 64, PACER_BATCHES = 4 };

struct batch {
    CUevent event;
    uint32_t launches;
    uint32_t recording; /* launches behind which it is yet to be recorded */
    uint64_t serial;    /* of the last launch: an answer of the driver to an older one is of no use */
    uint64_t since;     /* when the first launch was made */
};

struct pacer_stream {
    uint64_t handle;
    uint64_t ended; /* when its last batch that has ended, ended */
    uint32_t head, count;
    struct batch batches[PACER_BATCHES];
};

/* Of one context. The lock is not held while the driver is called. Times are CLOCK_MONOTONIC, nanoseconds. */
struct pacer {
    struct lock lock;
    uint64_t context; /* 0: free */
    int position;
    CUevent origin;
    uint64_t origin_at;
    uint32_t opening;  /* the origin is yet to be recorded */
    uint64_t since;    /* there is unfinished work; 0: there is none */
    uint64_t paid;     /* up to when the slice was charged for it */
    uint64_t total;    /* what the slice was charged in all by then */
    uint64_t latest;   /* when the last of the work that has ended, ended */
    uint64_t pace;     /* what a launch takes, lately; 0: not known */
    uint64_t progress; /* when something was last shown to have ended */
    uint64_t serial;
    uint32_t under_way; /* launches that are not shown to have ended */
    struct pacer_stream streams[PACER_STREAMS];
};

/* One launch that is measured. */
struct launch {
    struct pacer *pacer; /* NULL: it is not */
    struct batch *batch;
    CUstream handle;
};

/* The pacer of a context, and of all that have one. NULL: there is no room, or no more. */
struct pacer *pacer_of(uint64_t context, int position);
struct pacer *pacer_next(uint32_t *i);

/* Asks which batches have ended, and charges for the device's time up to now. */
void pacer_look(struct pacer *pacer, uint32_t cores, uint64_t now);

/* Whether one more launch in the stream would end soon, as far as those before it tell. */
bool pacer_has_room(struct pacer *pacer, CUstream handle);

/* What is under way may wait for a launch that has waited since `from`: nothing has ended for longer than launches take. Says
 * so to one at a time. */
bool pacer_is_stuck(struct pacer *pacer, uint64_t from, uint64_t now);

/* Around the driver's call. */
void pacer_begin(struct launch *launch, uint64_t now);
void pacer_end(struct launch *launch, bool launched);

/* The context is about to end, and its events with it. */
void pacer_forget(uint64_t context);
