#include "pacer.h"

#include "charge/charge.h"
#include "charge/resident.h"
#include "slice/budget.h"
#include "slice/ledger.h"

#include <sys/mman.h>

enum {
    BATCH_NS = 1000000, /* a batch is as long as that, or */
    BATCH_MOST = 64,    /* has so many launches */
    DEPTH_NS = 4000000, /* so much work of a stream is under way, or one launch */
    STUCK_NS = 200000000,
    RENEW_NS = 1000000000
};

static struct pacer *all_of(struct process *in)
{
    struct pacer *have = atomic_load_explicit(&in->pacers, memory_order_acquire), *made;
    if (have)
        return have;
    made = wiped_memory(PACER_CONTEXTS * sizeof(*made));
    if (!made || atomic_compare_exchange_strong(&in->pacers, &have, made))
        return made;
    munmap(made, PACER_CONTEXTS * sizeof(*made));
    return have;
}

struct pacer *pacer_of(uint64_t context, int position)
{
    struct process *in = process();
    struct pacer *all = in ? all_of(in) : NULL, *found = NULL, *spare = NULL;
    if (!all)
        return NULL;
    lock_take(&in->pacing);
    for (int i = PACER_CONTEXTS - 1; i >= 0; i--) {
        found = all[i].context == context ? &all[i] : found;
        spare = all[i].context ? spare : &all[i];
    }
    if (!found && spare) {
        found = spare;
        found->context = context;
        found->position = position;
    }
    lock_drop(&in->pacing);
    return found;
}

struct pacer *pacer_next(uint32_t *i)
{
    struct process *in = process();
    struct pacer *all = in ? atomic_load_explicit(&in->pacers, memory_order_acquire) : NULL;
    while (all && *i < PACER_CONTEXTS)
        if (all[(*i)++].context)
            return &all[*i - 1];
    return NULL;
}

static void record(struct pacer *pacer, CUevent *event, CUstream handle)
{
    if (!*event)
        *event = event_make(pacer->context, 0);
    if (*event)
        REAL(cuEventRecord)(*event, handle);
}

/* When an event that was reached was. Where the driver cannot tell: just now. */
static uint64_t time_of(CUevent origin, uint64_t origin_at, CUevent event, uint64_t now)
{
    float ms = 0;
    if (!origin || RESIDENT(cuEventElapsedTime)(&ms, origin, event) != CUDA_SUCCESS || !(ms >= 0))
        return now;
    return least(origin_at + (uint64_t)((double)ms * 1e6), now);
}

/* The lock is held. */
static void end_batch(struct pacer *pacer, struct pacer_stream *stream, uint64_t end)
{
    struct batch *batch = &stream->batches[stream->head];
    uint64_t begin = stream->ended > batch->since ? stream->ended : batch->since;
    uint64_t each = end > begin ? (end - begin) / batch->launches : 1;
    pacer->pace = pacer->pace ? (3 * pacer->pace + each) / 4 : each;
    pacer->pace += !pacer->pace;
    pacer->under_way -= batch->launches;
    pacer->latest = end > pacer->latest ? end : pacer->latest;
    stream->ended = end;
    if (end > pacer->origin_at + RENEW_NS && end == pacer->latest) { /* event times are exact for a while */
        CUevent before = pacer->origin;
        pacer->origin = batch->event;
        pacer->origin_at = end;
        batch->event = before;
    }
    batch->launches = 0;
    stream->head = (stream->head + 1) % PACER_BATCHES;
    stream->count--;
}

/* The lock is held, and given up while the driver is asked. True: the stream's first batch has ended. */
static bool look_at(struct pacer *pacer, struct pacer_stream *stream, uint64_t now)
{
    struct batch *batch = &stream->batches[stream->head];
    if (!stream->count || batch->recording || pacer->opening)
        return false;
    CUevent event = batch->event, origin = pacer->origin;
    uint64_t serial = batch->serial, origin_at = pacer->origin_at, end = now;
    lock_drop(&pacer->lock);
    bool ended = !event || RESIDENT(cuEventQuery)(event) != CUDA_ERROR_NOT_READY;
    if (ended && event)
        end = time_of(origin, origin_at, event, now);
    lock_take(&pacer->lock);
    if (!ended || !stream->count || batch != &stream->batches[stream->head] || batch->serial != serial ||
        batch->recording)
        return false;
    end_batch(pacer, stream, end);
    pacer->progress = now;
    return true;
}

void pacer_look(struct pacer *pacer, uint32_t cores, uint64_t now)
{
    lock_take(&pacer->lock);
    if (pacer->since > now) /* the clock was set back */
        pacer->since = pacer->paid = pacer->latest = pacer->origin_at = now;
    for (int i = 0; pacer->under_way && i < PACER_STREAMS; i++)
        while (look_at(pacer, &pacer->streams[i], now))
            ;
    if (pacer->since) {
        uint64_t upto = pacer->under_way ? now : pacer->latest;
        if (upto > pacer->paid) {
            budget_charge(budget_of(pacer->position, now), cores, upto - pacer->paid, now - upto,
                          &pacer->total);
            pacer->paid = upto;
        }
        if (!pacer->under_way)
            pacer->since = 0;
    }
    lock_drop(&pacer->lock);
}

bool pacer_is_stuck(struct pacer *pacer, uint64_t from, uint64_t now)
{
    lock_take(&pacer->lock);
    uint64_t since = pacer->progress > from ? pacer->progress : from;
    bool stuck = pacer->under_way && now > since + STUCK_NS && now > since + 4 * pacer->pace;
    if (stuck)
        pacer->progress = now;
    lock_drop(&pacer->lock);
    return stuck;
}

/* The one with the handle, or one without work, or else any. */
static struct pacer_stream *stream_of(struct pacer *pacer, uint64_t handle)
{
    struct pacer_stream *spare = NULL;
    for (int i = PACER_STREAMS - 1; i >= 0; i--) {
        struct pacer_stream *stream = &pacer->streams[i];
        if (stream->handle == handle)
            return stream;
        spare = stream->count ? spare : stream;
    }
    if (spare)
        spare->handle = handle;
    return spare;
}

static struct batch *batch_of(struct pacer *pacer, struct pacer_stream *stream, uint64_t now)
{
    struct batch *last = &stream->batches[(stream->head + stream->count - 1) % PACER_BATCHES];
    bool full = !stream->count || last->launches >= BATCH_MOST || pacer->pace * last->launches >= BATCH_NS;
    if (!full || stream->count == PACER_BATCHES)
        return last;
    last = &stream->batches[(stream->head + stream->count++) % PACER_BATCHES];
    last->since = now;
    return last;
}

/* Each thread has a default stream of its own by the handle 2. */
static uint64_t key_of(CUstream handle)
{
    static __thread char own;
    return (uintptr_t)handle == 2 ? (uintptr_t)&own : (uintptr_t)handle;
}

bool pacer_has_room(struct pacer *pacer, CUstream handle)
{
    lock_take(&pacer->lock);
    struct pacer_stream *stream = stream_of(pacer, key_of(handle));
    uint32_t ahead = 0;
    for (int i = 0; stream && i < PACER_BATCHES; i++)
        ahead += stream->batches[i].launches;
    bool room = !ahead || (pacer->pace && pacer->pace * (ahead + 1) <= DEPTH_NS);
    lock_drop(&pacer->lock);
    return room;
}

void pacer_begin(struct launch *launch, uint64_t now)
{
    struct pacer *pacer = launch->pacer;
    lock_take(&pacer->lock);
    struct pacer_stream *stream = stream_of(pacer, key_of(launch->handle));
    if (!stream) { /* there are more with work than are watched */
        launch->pacer = NULL;
        lock_drop(&pacer->lock);
        return;
    }
    launch->batch = batch_of(pacer, stream, now);
    launch->batch->launches++;
    launch->batch->recording++;
    launch->batch->serial = ++pacer->serial;
    pacer->under_way++;
    bool opens = !pacer->since;
    if (opens) {
        pacer->since = pacer->paid = pacer->latest = pacer->origin_at = now;
        pacer->total = SHARED_READ(budget_of(pacer->position, now)->charged);
        pacer->opening++;
    }
    SHARED_ADD(budget_of(pacer->position, now)->launches, 1);
    lock_drop(&pacer->lock);
    if (!opens)
        return;
    record(pacer, &pacer->origin, launch->handle);
    lock_take(&pacer->lock);
    pacer->opening--;
    lock_drop(&pacer->lock);
}

void pacer_end(struct launch *launch, bool launched)
{
    struct pacer *pacer = launch->pacer;
    if (launched)
        record(pacer, &launch->batch->event, launch->handle);
    lock_take(&pacer->lock);
    launch->batch->recording -= launch->batch->recording != 0;
    lock_drop(&pacer->lock);
}

void pacer_forget(uint64_t context)
{
    struct process *in = process();
    struct pacer *pacer;
    for (uint32_t i = 0; (pacer = pacer_next(&i));)
        if (pacer->context == context) {
            lock_take(&in->pacing);
            *pacer = (struct pacer){0};
            lock_drop(&in->pacing);
        }
}
