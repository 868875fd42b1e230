/* How long the device works for this process: events before and behind launches in the program's own streams, few of
 * them. A mark is such an event, with what was launched between it and the mark before. */
#ifndef NVC_VGPU_METER_H
#define NVC_VGPU_METER_H

#include "charge.h"
#include "estimate.h"

enum { METER_STREAMS = 2048, METER_MARKS = 32, METER_CONTEXTS = 32, METER_POOL = 128, METER_INSIDE = 64 };
#define STREAM_ENDED UINT64_MAX /* destroyed by the program; its last marks are yet to be read */

/* EVENT_NS: what an event between two kernels of a stream takes of the device, which is ours and not the program's. On an
 * H100, 800 kernels of 5 us need 6.73 us each, with an event behind every one of 4, 16 or 64 of them 2.2 us more for each
 * event, and one kernel between two events 8.9 us (driver 580). LONE_NS: so much longer than among others takes one that
 * is launched when the stream is idle: 7.15 us, less the time between the calls that record the event and launch it. */
enum {
    MARK_LAUNCHES = 64,
    MARK_NS = 500000,
    GAP_NS = 150000,
    PROMPT_NS = 50000,
    EVENT_NS = 2200,
    LONE_NS = 350,
    /* Of the launches into an idle stream, one of so many is timed by itself: of short kernels few, of long ones many, and
     * some of what has not been timed for a while. */
    ALONE_SHORT = 64,
    ALONE_LONG = 4,
    ALONE_LATE = 8,
    LONG_NS = 50000,
    UNTIMED_NS = 2000000,
    CHANCE_NS = 64,
    LOST_NS = 200000000
};

/* What is launched, and not in front of a mark yet. */
struct stretch {
    uint32_t launches;  /* kernels and graphs */
    uint32_t counted;   /* of these, in the meter's `outstanding` */
    uint64_t sum;       /* of their estimates, nanoseconds */
    uint64_t paid;      /* when they were launched: less, where launches overlap */
    uint64_t weight;    /* likewise in the meter's `ahead` */
    uint64_t key;       /* of all; 0: they differ */
    uint64_t gap;       /* that the device waited for the first one, after the mark in front */
    uint64_t forfeited; /* in the budget, before the first one */
    uint32_t forced;    /* the meter's `forced_in_all`, before the first one */
    bool unknown;       /* an estimate was missing */
};

struct mark {
    CUevent event;
    uint64_t at; /* CLOCK_MONOTONIC, nanoseconds, when it was recorded */
    struct stretch before;
    uint64_t behind; /* the last launch, nanoseconds */
    bool exact;      /* the stream had work all the time since the mark in front, or since its gap */
    uint16_t extra;  /* of that time, for our events or for want of other work: LONE_NS or EVENT_NS */
};

/* A stream of the program. */
struct stream_meter {
    uint64_t handle, context,
        thread;      /* 0 or, of a default stream per thread, whose; handle 0: free, or STREAM_ENDED */
    uint64_t serial; /* of marks, of all that were put into the ring */
    uint64_t last_launch, last_mark; /* CLOCK_MONOTONIC, nanoseconds */
    int64_t time;                    /* of the last mark that was read, on the context's clock */
    uint64_t ended;                  /* likewise, CLOCK_MONOTONIC as estimated, nanoseconds; 0: unknown */
    uint64_t wrong; /* by so much what was in front of it was not what its estimate said, nanoseconds */
    uint32_t head, count; /* of the ring */
    uint32_t place;       /* of the context */
    bool anchored;        /* there was a mark, so what follows has a start */
    bool timed;           /* and `time` is set */
    bool idle;            /* of the last mark */
    bool prompt;          /* it was recorded at once, and so was what was launched first after it */
    struct stretch open;
    struct mark ring[METER_MARKS];
};

/* Event times are relative to one of the events of their context, and precise for some seconds: it is renewed. */
struct context_meter {
    uint64_t context;
    CUevent origin;
    int64_t base;     /* CLOCK_MONOTONIC at the origin, nanoseconds, as estimated */
    uint64_t base_at; /* when that was improved */
    uint32_t pooled;
    CUevent pool[METER_POOL];
};

/* A thread that is in the driver with a launch. */
struct inside {
    _Atomic uint64_t since; /* CLOCK_MONOTONIC, nanoseconds; 0: nobody */
    uint64_t weight;
};

/* Of one device; `lock` guards it, and is not held while the driver is called. */
struct meter {
    struct lock lock;
    int position;
    _Atomic bool reading;    /* one thread at a time reads events */
    _Atomic uint32_t inside; /* threads between their admission and the end of their launch */
    struct inside threads[METER_INSIDE];
    _Atomic uint64_t last_launch; /* CLOCK_MONOTONIC, nanoseconds */
    _Atomic uint64_t charged;
    _Atomic uint64_t read_at; /* when events were last read */
    uint32_t cores;           /* the cap, for what is charged */
    uint64_t ahead;           /* time of all that is launched and not read, as estimated */
    uint32_t outstanding;     /* launches likewise */
    uint32_t marks;           /* in all rings */
    uint64_t progress_at;     /* when something was last read, or admitted for want of progress */
    uint32_t forced;          /* so often, since something was read */
    uint32_t forced_in_all;
    uint64_t forfeited;     /* in the budget, when it was last looked at */
    uint64_t forgiven;      /* up to where that was made up for */
    uint64_t lately_used;   /* what was charged lately, */
    uint64_t lately_summed; /* and the estimates of that: more, where launches overlap */
    int64_t allowance;      /* drawn from the budget, for launches */
    uint64_t allowance_at;
    uint64_t saved; /* by stretches that took less than estimated; whoever reads has it */
    struct vgpu_budget own;
    struct estimates estimates;
    struct context_meter contexts[METER_CONTEXTS];
    /* A bit for each stream that is in use: to look at all is 7 MiB. */
    _Atomic uint64_t live[METER_STREAMS / 64];
    struct stream_meter streams[METER_STREAMS];
};

/* The first stream in use from there on; METER_STREAMS: none is. */
static inline uint32_t meter_next(const struct meter *meter, uint32_t from)
{
    while (from < METER_STREAMS) {
        uint64_t bits = atomic_load_explicit(&meter->live[from / 64], memory_order_relaxed) >> from % 64;
        if (bits)
            return from + (uint32_t)__builtin_ctzll(bits);
        from = (from / 64 + 1) * 64;
    }
    return METER_STREAMS;
}

#define EACH_STREAM(meter, i)                                                                               \
    for (uint32_t i = meter_next(meter, 0); i < METER_STREAMS; i = meter_next(meter, i + 1))

/* One launch, between the gate and its end. */
struct passage {
    struct meter *meter; /* NULL: nothing is noted */
    struct stream_meter *stream;
    struct target to;
    CUstream handle;
    uint64_t key;
    uint64_t sum, paid, weight; /* see struct stretch */
    uint32_t forced;            /* the meter's `forced_in_all`, this launch included */
    uint32_t place;             /* of the meter's `threads`; METER_INSIDE: there was no room */
    uint64_t now;               /* CLOCK_MONOTONIC, nanoseconds, when the gate opened */
    uint32_t ticket;
    bool queued; /* for credit, with that ticket */
    bool single; /* timed by itself */
    bool lone;   /* likewise if its stream has no work */
    bool looks;  /* before it, at whether its stream has work */
    bool unknown;
};

/* Of a device, for this process; NULL: no memory for it, or nothing was ever launched through the gate. */
struct meter *meter_of(int position);
struct meter *meter_make(int position);

/* Around a launch: they put marks into its stream. The lock is held for the first. */
void meter_enter(struct passage *passage);
void meter_before(struct passage *passage);
void meter_after(struct passage *passage, bool launched);

/* The passage is over, or never began. */
void meter_leave(const struct passage *passage);

/* Threads that are in the driver with a launch. A thread may leave it by pthread_exit(3) or longjmp(3), in a handler of
 * the program's, or be cancelled there: who has been in for LOST_NS, and with no mark left to be read, is taken for
 * one that does not come back, and what it paid for is outstanding no more. */
uint32_t meter_inside(struct meter *meter, uint64_t now);

/* Reads the marks that the device has passed, and charges for what was before them. False: another thread is at it. */
bool meter_read(struct meter *meter);

/* What was launched so long ago that it has surely ended, with no mark behind it, is outstanding no more. */
void meter_expire(struct meter *meter, uint64_t now);

/* A context, or a stream, is about to end; another may get its handle. */
void meter_retire_context(uint64_t context);
void meter_retire_stream(CUstream stream);

/* What had the key has ended. */
void meter_forget(uint64_t key);

/* Shared by meter.c, read.c and retire.c. The lock is held for the last three. */
bool meter_begin(struct meter *meter); /* takes `reading`; false: another thread has it */
void meter_end(struct meter *meter);
CUevent meter_event(struct meter *meter, struct stream_meter *stream);
enum stretch_is { STRETCH_LOOSE, STRETCH_LONE, STRETCH_QUEUED };
bool meter_mark(struct passage *passage, bool idle, enum stretch_is is, uint64_t asked);
void meter_put_event(struct meter *meter, uint32_t place, CUevent event);
void meter_release(struct meter *meter, const struct stretch *stretch); /* it is outstanding no more */
void meter_drop_mark(struct meter *meter, struct stream_meter *stream); /* the first in the ring */
void meter_free_stream(struct meter *meter, struct stream_meter *stream);

/* Calls of ours are no part of any thread's capture. */
static inline int capture_leave(void)
{
    int mode = 2; /* relaxed */
    return REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS ? mode : -1;
}

static inline void capture_return(int mode)
{
    if (mode >= 0)
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

#endif
