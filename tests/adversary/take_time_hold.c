/* Ways of take_time: work that waits for the host, which is not charged until it runs, hides work that does run. */
#include "take_time.h"

#include <pthread.h>

enum { STREAMS = 8 };

struct held {
    Address at;
    volatile uint32_t *word;
    Handle stream;
};

static struct held hold_in(Handle stream)
{
    void *word;
    struct held held = {.stream = stream};
    CU(cuMemHostAlloc, (void **, size_t, unsigned), &word, 4096, 2);
    CU(cuMemHostGetDevicePointer_v2, (Address *, void *, unsigned), &held.at, word, 0);
    held.word = word;
    *held.word = 0;
    return held;
}

static void hold(const struct held *held, uint32_t until)
{
    CU(cuStreamWaitValue32_v2, (Handle, Address, uint32_t, unsigned), held->stream, held->at, until, 0);
}

/* Most streams wait at any time, and one after the other may go on. */
static void one_by_one(void)
{
    struct held all[STREAMS];
    for (int i = 0; i < STREAMS; i++)
        all[i] = hold_in(new_stream());
    for (uint32_t round = 1; more(); round++) {
        for (int i = 0; i < STREAMS; i++) {
            hold(&all[i], round);
            launch(all[i].stream, 1000);
        }
        for (int i = 0; i < STREAMS; i++) {
            *all[i].word = round;
            pause_for(3000);
        }
    }
}

/* The stream is destroyed while its work waits. */
static void in_gone_streams(void)
{
    while (more()) {
        struct held held = hold_in(new_stream());
        hold(&held, 1);
        launch(held.stream, 5000);
        CU(cuStreamDestroy_v2, (Handle), held.stream);
        pause_for(5000);
        *held.word = 1;
        wait_for_all();
        CU(cuMemFreeHost, (void *), (void *)held.word);
    }
}

/* Streams wait for events of one that waits; blocking ones for the default stream. */
static void behind_events(void)
{
    struct held held = hold_in(new_stream());
    Handle event, behind = new_stream(), blocking;
    CU(cuEventCreate, (Handle *, unsigned), &event, 2);
    CU(cuStreamCreate, (Handle *, unsigned), &blocking, 0);
    for (uint32_t round = 1; more(); round++) {
        hold(&held, round);
        launch(held.stream, 1000);
        CU(cuEventRecord, (Handle, Handle), event, held.stream);
        CU(cuStreamWaitEvent, (Handle, Handle, unsigned), behind, event, 0);
        launch(behind, 3000);
        CU(cuStreamWaitEvent, (Handle, Handle, unsigned), NULL, event, 0);
        launch(blocking, 2000);
        launch(NULL, 1000);
        pause_for(4000);
        *held.word = round;
        wait_for_all();
    }
}

static _Atomic uint32_t may_go;

static void until_it_may(void *round)
{
    while (may_go < (uint32_t)(uintptr_t)round)
        pause_for(100);
}

/* The stream's function returns when the program wants it to. */
static void behind_functions(void)
{
    Handle stream = new_stream();
    for (uintptr_t round = 1; more(); round++) {
        CU(cuLaunchHostFunc, (Handle, void (*)(void *), void *), stream, until_it_may, (void *)round);
        for (int i = 0; i < 2; i++)
            launch(stream, 4000);
        pause_for(5000);
        may_go = (uint32_t)round;
        wait_for(stream);
    }
}

static struct held shared;

static void *launch_beside(void *none)
{
    CU(cuCtxSetCurrent, (Handle), context);
    while (more())
        launch(shared.stream, 2000);
    return none;
}

/* Two threads launch in one stream, and one of them lets it wait: what the other launches is on either side. */
static void in_a_race(void)
{
    pthread_t made;
    shared = hold_in(new_stream());
    pthread_create(&made, NULL, launch_beside, NULL);
    for (uint32_t round = 1; more(); round++) {
        hold(&shared, round);
        launch(shared.stream, 500);
        pause_for(200);
        *shared.word = round;
    }
    pthread_join(made, NULL);
}

static void *capture_beside(void *none)
{
    CUresult (*begin_capture)(Handle, int), (*end_capture)(Handle, Handle *);
    *(void **)&begin_capture = entry("cuStreamBeginCapture_v2");
    *(void **)&end_capture = entry("cuStreamEndCapture");
    CU(cuCtxSetCurrent, (Handle), context);
    for (Handle graph; more(); pause_for(7))
        if (!begin_capture(shared.stream, 2) && !end_capture(shared.stream, &graph) && graph)
            CU(cuGraphDestroy, (Handle), graph);
    return none;
}

/* Another thread captures the stream for moments: a mark that comes into a capture is never reached. */
static void in_captures(void)
{
    pthread_t made;
    shared = hold_in(new_stream());
    pthread_create(&made, NULL, capture_beside, NULL);
    for (uint32_t round = 1; more(); round++) {
        CUresult (*wait_value)(Handle, Address, uint32_t, unsigned);
        *(void **)&wait_value = entry("cuStreamWaitValue32_v2");
        wait_value(shared.stream, shared.at, round, 0);
        launch(shared.stream, 3000);
        *shared.word = round;
        pause_for(100);
    }
    pthread_join(made, NULL);
}

/* A second context has the stream that waits, and the first one the work. */
static void in_another_context(void)
{
    Handle second;
    CU(cuCtxCreate_v2, (Handle *, unsigned, int), &second, 0, 0);
    Handle mine = function_of(new_module()), keep = function;
    struct held held = hold_in(new_stream());
    hold(&held, 1);
    function = mine;
    launch(held.stream, 1);
    CU(cuCtxSetCurrent, (Handle), context);
    function = keep;
    for (Handle stream = new_stream(); more();)
        launch(stream, 6000);
    *held.word = 1;
}

/* It keeps handles of events that it has destroyed, which the driver gives to others, and records them, whosever they are,
 * in a stream that does not go on. */
static void with_stolen_marks(void)
{
    enum { EVENTS = 128 };
    Handle stolen[EVENTS];
    struct held work = hold_in(new_stream()), cage = hold_in(new_stream());
    CUresult (*record)(Handle, Handle);
    *(void **)&record = entry("cuEventRecord");
    for (int i = 0; i < EVENTS; i++)
        CU(cuEventCreate, (Handle *, unsigned), &stolen[i], 0);
    for (int i = 0; i < EVENTS; i++)
        CU(cuEventDestroy_v2, (Handle), stolen[i]);
    for (uint32_t round = 1; more(); round++) {
        hold(&cage, round);
        hold(&work, round);
        launch(work.stream, 20000);
        for (int i = 0; i < EVENTS; i++)
            record(stolen[i], cage.stream);
        *work.word = round;
        wait_for(work.stream);
        *cage.word = round;
    }
}

const struct way hold_ways[] = {{"held-one-by-one", one_by_one, false},
                                {"held-gone", in_gone_streams, false},
                                {"held-events", behind_events, false},
                                {"held-functions", behind_functions, false},
                                {"held-race", in_a_race, false},
                                {"held-captures", in_captures, false},
                                {"held-context", in_another_context, false},
                                {"stolen-marks", with_stolen_marks, false},
                                {0}};
