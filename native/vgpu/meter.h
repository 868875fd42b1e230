/* How long a device works for this process: busy until shown idle. From the first launch into an idle device on, all
 * time is charged until it is shown that what was launched has ended:
 *
 *   - the program waits, or asks, and the driver answers that its streams are done (waits.c);
 *   - a mark behind the launches, a timed event of ours, is reached (marks.c);
 *   - we ask the driver about each stream with unfinished work, before launches and now and then (watch.c).
 *
 * What cannot be shown to have ended counts as unfinished. Work that waits for the host, or for another process, does not
 * run: a mark in front of it that is not reached shows that. The device *stalls* while each stream with unfinished work
 * has such a mark, and that time is not charged: see stalls.c. Nothing here is estimated but how many launches may be under
 * way at one time, and how full a stretch is in which the host is too slow to keep the device busy: see `density`. */
#ifndef NVC_VGPU_METER_H
#define NVC_VGPU_METER_H

#include "budget.h"
#include "capture.h"
#include "charge.h"

enum {
    METER_MARKS = 16,    /* of a stream, that the device has not reached */
    METER_CONTEXTS = 32, /* with marks; streams of others are asked about */
    METER_POOL = 64,     /* events of a context that are at hand */
    METER_MOST = 256,    /* launches under way, without a cap */
    MARK_LAUNCHES = 64,
    MARK_NS = 500000
};

struct mark {
    CUevent event;
    uint64_t launches; /* of the stream's, in front of it */
    uint64_t called;   /* when it was about to be recorded, and */
    uint64_t recorded; /* when it was; all times of the meter are CLOCK_MONOTONIC, nanoseconds */
    uint64_t first;    /* when the first launch after the mark before was made */
    bool sampled;      /* one launch is between it and the mark before */
    bool begins;       /* all further launches of the stream are behind it, whichever thread made them */
};

/* A stream with unfinished work. */
struct stream {
    uint64_t handle; /* 0: free; STREAM_GONE: destroyed by the program, its marks are yet to be reached */
    uint64_t context;
    uint64_t thread;  /* whose default stream it is; 0: one that all threads have */
    uint64_t begun;   /* launches that were let through */
    uint64_t made;    /* of these, by how many the driver's call has returned */
    uint64_t ended;   /* of these, shown to have ended */
    uint64_t serial;  /* the meter's, when the last call returned */
    uint64_t entered; /* when the last launch was let through */
    uint64_t marked;  /* launches in front of the last mark */
    uint64_t since;   /* the first launch that no mark is behind was made then */
    uint64_t reached; /* when the device reached the last mark that was read; 0: there was none */
    uint32_t head, count;
    uint32_t place;  /* of the context; METER_CONTEXTS: none */
    uint32_t sample; /* launches left that are timed one by one */
    uint64_t still;  /* nothing of the stream ran at that time: see stalls.c */
    struct mark ring[METER_MARKS];
};

#define STREAM_GONE UINT64_MAX
#define STREAM_WAS (UINT64_MAX - 1) /* where one was, in the table */

/* Event times are relative to one of the events of their context, and precise for some seconds: it is renewed. */
struct context_clock {
    uint64_t context;
    CUevent origin;
    int64_t base;     /* our clock at the origin, rather too late */
    int64_t floor;    /* the same, never too late */
    uint64_t base_at; /* when that was improved; 0: never */
    uint64_t set_at;  /* when the clocks were compared on an idle device */
    uint32_t pooled;
    CUevent pool[METER_POOL];
};

/* How much of a stretch in which the host launches one by one, and waits for none, the device works. Taken from
 * stretches that are chosen by chance, and in which every launch is timed. */
struct density {
    uint64_t busy, all; /* of the last stretches, nanoseconds */
    uint64_t at;        /* when that was last added to; old ones say nothing */
    uint64_t random;
    bool full; /* in the last stretch the host was not too slow */
};

/* Of one device; `lock` guards it, and is not held while the driver is called. */
struct meter {
    struct lock lock;
    int position;
    _Atomic bool reading;         /* one thread at a time reads marks, and asks */
    _Atomic uint64_t busy;        /* since when there is unfinished work; 0: there is none */
    _Atomic uint64_t last_launch; /* when */
    _Atomic uint64_t looked;      /* when marks were last read, and streams asked about */
    _Atomic uint64_t charged;     /* GPU time of this process's intervals, for nvcd */
    _Atomic bool stalled;         /* at the last look, there was unfinished work, and none of it ran */
    uint32_t cores;               /* the cap, for what is charged */
    _Atomic uint64_t serial;      /* calls of launches that have returned */
    uint32_t under_way;           /* launches that are not shown to have ended */
    uint32_t allowed;             /* so many may be, if the cap allows as many */
    uint32_t others;              /* processes of the slice that have some too, at the last launch */
    uint64_t proven;              /* time of the device in which launches were short, see depth.c */
    uint32_t breaches;            /* so often they were not, after that was proven */
    uint32_t doubts;   /* since launches had to wait too long: so many more in time, and there is none */
    uint64_t progress; /* when something was last shown to have ended, or let through for want of that */
    uint64_t oldest,
        oldest_heard; /* since when the launch waits that waits longest, and when it was last heard of */
    _Atomic uint64_t latest;  /* when the last of the work that has ended, ended */
    _Atomic uint64_t latency; /* of a launch that is waited for: see latency.c; UINT64_MAX: not measured */
    _Atomic uint64_t measure_at; /* when that may be tried again */
    _Atomic uint32_t tries;      /* at that */
    _Atomic bool measuring;
    _Atomic uint64_t pace;  /* time of one launch, lately: to guess when what is under way will have ended */
    uint32_t closing;       /* contexts that are about to end with unfinished work */
    uint32_t used, room;    /* of `streams` */
    struct stream *streams; /* found by a hash; moves when it grows */
    uint64_t weighed;       /* when credit was last looked at */
    uint64_t turn_until;    /* the process waited for credit, and launches until then while there is some */
    struct density density;
    struct budget budget;
    struct context_clock contexts[METER_CONTEXTS];
};

/* One launch, from the gate to its end. */
struct launch {
    struct meter *meter; /* NULL: it is not metered */
    struct target to;
    CUstream handle;
    uint64_t thread;
    uint64_t now; /* when it was let through */
    uint32_t ticket;
    bool queued;     /* for credit, with that ticket */
    bool paced;      /* beside others that run at the same time: two that pause alike must not go in step */
    uint32_t spread; /* by chance */
    int position;
    bool captured; /* its stream captures, and what had changed of captures by then */
    uint64_t captures;
    bool prompt; /* it is one kernel, or the like, which begins at the end of the driver's call */
};

/* Of a device, for this process. NULL: nothing was ever launched through the gate; or, for the second, no memory. */
struct meter *meter_of(int position);
struct meter *meter_make(int position);

/* Around the driver's call. The lock is held for the first; false: no memory, the launch must not be made. */
bool meter_begin(struct launch *launch);
void meter_end(struct launch *launch, bool launched);

/* Charges up to now, reads marks, and asks about streams; one that has ended is known for `off` longer than it took to.
 * False: another thread is at it. */
bool meter_look(struct meter *meter, uint64_t now, uint64_t off);

/* The same for marks alone, which takes fewer calls of the driver. */
bool meter_peek(struct meter *meter, uint64_t now);

/* Everything of these that was launched before `serial` has ended, at `end`. Zero means any. True: the program `stepped`, since
 * it waited for that, and nothing of its own is left on the device. */
bool meter_ended(struct meter *meter, uint64_t context, uint64_t handle, uint64_t thread, uint64_t serial,
                 uint64_t end, bool stepped);

/* stalls.c: a stream is about to wait for something else than its own work. */
void stall_expect(CUstream handle, uint64_t context, int position, uint64_t thread);

/* A stream waits, for all that is known, and nothing was launched behind that. */
bool stall_is_expected(void);

/* Around the first launch behind such a wait: a mark in front of it, when it may be made. */
void stall_mark(struct launch *launch);

/* The lock is held. At `asked` the stream's first mark was not reached; what passed since the last work has ended and
 * before any other began is not charged; at `asked`, no stream's mark was reached. */
void stall_note(struct stream *stream, uint64_t asked);
void stall_leave_out(struct meter *meter, uint64_t now);
bool stall_is_on(const struct meter *meter, uint64_t asked);

/* The program waited, or asked, and a look showed that nothing of its own is left on the device. */
void meter_stepped(struct meter *meter, uint64_t now);

/* A context, or a stream, ends: what is unfinished in it is charged for until the driver has ended it. The first returns
 * for the second on which devices something is. */
uint64_t meter_close_context(uint64_t context);
void meter_closed_context(uint64_t positions);
void meter_close_stream(CUstream stream);

/* Compares the device's clock with ours, if that is due. The device is idle. */
void marks_set_clock(struct meter *meter, CUstream handle, uint64_t context, uint64_t now);

/* Measures the latency, if that is due and the device is the current context's. The device is idle. */
void latency_measure(struct meter *meter);

/* Makes a thread that looks now and then while there is unfinished work, if there is none. */
void watch_start(void);

/* The work of the process on the device is finished, and shown to be. */
bool meter_is_idle(int position);

/* Between the meter's files. The lock is held, but for the last two, and for memory. */
void *meter_pages(size_t size); /* zeroed; NULL: there is none */
void meter_close_if_idle(struct meter *meter, uint64_t now);

/* The device worked since `busy` until `end`, and may work again from `next` on; 0: it does not. */
void meter_close_interval(struct meter *meter, uint64_t end, uint64_t next, uint64_t now);
struct stream *stream_add(struct meter *meter, uint64_t handle, uint64_t context, uint64_t thread);
void stream_forget(struct meter *meter, struct stream *stream); /* it has no unfinished work */

/* One after the other in which those with a handle are; NULL: there are no more. The table is not empty. */
struct stream *stream_at(struct meter *meter, uint64_t handle, uint32_t step);

struct stream *stream_find(struct meter *meter, uint64_t handle, uint64_t context, uint64_t thread);
void stream_ended(struct meter *meter, struct stream *stream, uint64_t launches, uint64_t end,
                  uint64_t waited);

/* depth.c: how many launches may be under way, of the slice by its cap, and of this process, by how long they waited for those
 * before them; whether a cap allows no more, though they are short; how many there are from one mark to the next where as many
 * are under way as may be; and whether these end before a thread that sleeps would be awake. */
uint32_t meter_most(const struct meter *meter);
void meter_adapt(struct meter *meter, uint64_t waited);
uint32_t meter_room(const struct meter *meter);
/* Launches took `launch` each, in a stretch of work. The lock is held. */
void meter_prove(struct meter *meter, uint64_t launch, uint64_t from, uint64_t to);
bool meter_is_limited(const struct meter *meter);
uint64_t launches_a_mark(const struct meter *meter);
bool meter_ends_soon(const struct meter *meter);
void note_pace(struct meter *meter, uint64_t launch); /* so long one took */
void marks_drop(struct meter *meter, struct stream *stream);
bool mark_is_due(struct meter *meter, struct stream *stream, uint64_t now);
bool streams_have_marks(struct meter *meter); /* the device has yet to reach one */
bool mark_put(struct meter *meter, CUstream handle, uint64_t key, uint64_t context, uint64_t thread);

/* In front of a launch that was let through, and is not made yet. */
void mark_put_before(struct launch *launch);

/* Reads marks that the device has passed: of each stream all, or, with `began`, up to where what waited began. */
void marks_read(struct meter *meter, bool *began);

static inline bool stream_is_used(const struct stream *stream)
{
    return stream->handle && stream->handle != STREAM_WAS;
}

uint64_t this_thread(void);

#endif
