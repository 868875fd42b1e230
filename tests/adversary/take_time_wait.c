/* Ways of take_time: how a program waits for what it has launched, or does not. */
#include "take_time.h"

/* It knows how long its kernels take, and asks nobody. */
static void sleeping(void)
{
    for (Handle stream = new_stream(); more(); pause_for(2100))
        launch(stream, 2000);
}

static void by_event(void)
{
    Handle stream = new_stream(), event;
    CU(cuEventCreate, (Handle *, unsigned), &event, 2);
    CUresult (*query)(Handle) = NULL;
    *(void **)&query = entry("cuEventQuery");
    while (more()) {
        launch(stream, 3000);
        CU(cuEventRecord, (Handle, Handle), event, stream);
        while (query(event) == NOT_READY)
            ;
    }
}

static void by_blocking_event(void)
{
    Handle stream = new_stream(), event;
    CU(cuEventCreate, (Handle *, unsigned), &event, 1);
    while (more()) {
        launch(stream, 3000);
        CU(cuEventRecord, (Handle, Handle), event, stream);
        CU(cuEventSynchronize, (Handle), event);
    }
}

static void by_query(void)
{
    Handle stream = new_stream();
    CUresult (*query)(Handle) = NULL;
    *(void **)&query = entry("cuStreamQuery");
    while (more()) {
        launch(stream, 3000);
        while (query(stream) == NOT_READY)
            ;
    }
}

static void by_copy(void)
{
    Address memory;
    char bytes[64];
    CU(cuMemAlloc_v2, (Address *, size_t), &memory, 64);
    while (more()) {
        launch(NULL, 3000);
        CU(cuMemcpyDtoH_v2, (void *, Address, size_t), bytes, memory, sizeof(bytes));
    }
}

/* The driver frees when the device has ended what may use it. */
static void by_free(void)
{
    Address memory;
    while (more()) {
        CU(cuMemAlloc_v2, (Address *, size_t), &memory, 4 << 20);
        launch(NULL, 3000);
        CU(cuMemFree_v2, (Address), memory);
    }
}

static volatile uint32_t *new_word(Address *device)
{
    void *word;
    CU(cuMemHostAlloc, (void **, size_t, unsigned), &word, 4096, 2);
    CU(cuMemHostGetDevicePointer_v2, (Address *, void *, unsigned), device, word, 0);
    *(volatile uint32_t *)word = 0;
    return word;
}

/* The device writes to memory that the program watches. */
static void by_memory(void)
{
    Address at;
    volatile uint32_t *word = new_word(&at);
    Handle stream = new_stream();
    for (uint32_t i = 1; more(); i++) {
        launch(stream, 2500);
        CU(cuStreamWriteValue32_v2, (Handle, Address, uint32_t, unsigned), stream, at, i, 0);
        while (*word != i)
            pause_for(50);
    }
}

/* Launches pile up behind a word that the host writes, and then run in one go. */
static void held_back(void)
{
    Address at;
    volatile uint32_t *word = new_word(&at);
    Handle stream = new_stream();
    for (uint32_t i = 1; more(); i++) {
        CU(cuStreamWaitValue32_v2, (Handle, Address, uint32_t, unsigned), stream, at, i, 0);
        for (int n = 0; n < 5; n++)
            launch(stream, 4000);
        *word = i;
        if (i % 3 == 0)
            wait_for(stream);
    }
}

/* Something never ends, since the host never writes the word that it waits for: so whatever else is launched seems to be
 * what it waits for. */
static void pretending(void)
{
    Address at;
    volatile uint32_t *word = new_word(&at);
    Handle streams[2] = {new_stream(), new_stream()};
    CU(cuStreamWaitValue32_v2, (Handle, Address, uint32_t, unsigned), streams[0], at, 1, 0);
    launch(streams[0], 1);
    while (more())
        launch(streams[1], 8000);
    *word = 1;
}

static void many_events(void)
{
    enum { EVENTS = 20000 };
    static Handle events[EVENTS];
    Handle stream = new_stream();
    for (int i = 0; i < EVENTS; i++)
        CU(cuEventCreate, (Handle *, unsigned), &events[i], 2);
    for (int i = 0; more(); i++) {
        launch(stream, 400);
        CU(cuEventRecord, (Handle, Handle), events[i % EVENTS], stream);
    }
}

static void set_flag(void *flag)
{
    *(volatile int *)flag = 1;
}

/* Waits for a function of its own that the stream calls, and never asks the driver. */
static void by_callback(void)
{
    Handle stream = new_stream();
    while (more()) {
        volatile int flag = 0;
        launch(stream, 2500);
        CU(cuLaunchHostFunc, (Handle, void (*)(void *), void *), stream, set_flag, (void *)&flag);
        while (!flag)
            pause_for(50);
    }
}

const struct way wait_ways[] = {{"sleep", sleeping, false},
                                {"event", by_event, false},
                                {"blocking-event", by_blocking_event, false},
                                {"query", by_query, false},
                                {"copy", by_copy, false},
                                {"free", by_free, false},
                                {"watch-memory", by_memory, false},
                                {"held-back", held_back, false},
                                {"pretending", pretending, false},
                                {"events", many_events, false},
                                {"callback", by_callback, false},
                                {0}};
