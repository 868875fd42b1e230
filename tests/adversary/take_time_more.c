/* More ways of take_time: what the shim may lack, threads, callbacks, captures. */
#include "take_time.h"

#include <pthread.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* Nothing of the shim's is left open when the first kernel is launched, and nothing can be opened. */
void without_descriptors(void)
{
    for (int fd = 3; fd < 4096; fd++)
        close(fd);
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){3, 3});
    honest();
}

void without_memory(void)
{
    Handle stream = new_stream();
    setrlimit(RLIMIT_AS, &(struct rlimit){1 << 20, 1 << 20});
    for (; more(); wait_for(stream))
        launch(stream, 1000);
}

/* Launched by threads that end at once. */
static void *once_in_thread(void *stream)
{
    CU(cuCtxSetCurrent, (Handle), context);
    launch(stream, 20000);
    return NULL;
}

void short_threads(void)
{
    while (more()) {
        pthread_t made;
        pthread_create(&made, NULL, once_in_thread, (Handle)2);
        pthread_join(made, NULL);
    }
}

void null_stream(void)
{
    for (int i = 0; more(); i++) {
        launch(NULL, 700);
        if (i % 10 == 9)
            wait_for_all();
    }
}

static void set_flag(void *flag)
{
    *(volatile int *)flag = 1;
}

/* Waits for a function of its own that the stream calls, and never asks the driver. */
void by_callback(void)
{
    Handle stream = new_stream();
    while (more()) {
        volatile int flag = 0;
        launch(stream, 2500);
        CU(cuLaunchHostFunc, (Handle, void (*)(void *), void *), stream, set_flag, (void *)&flag);
        while (!flag)
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
}

/* Another thread waits, and this one never stops launching. */
static void *wait_only(void *stream)
{
    CU(cuCtxSetCurrent, (Handle), context);
    while (more())
        wait_for(stream);
    return NULL;
}

void waited_for_by_another(void)
{
    pthread_t made;
    Handle stream = new_stream();
    pthread_create(&made, NULL, wait_only, stream);
    while (more())
        launch(stream, 900);
    pthread_join(made, NULL);
}

/* While a stream captures, so that questions of ours could break it. */
void beside_a_capture(void)
{
    Handle stream = new_stream(), other = new_stream(), graph;
    while (more()) {
        double before = used_us;
        CU(cuStreamBeginCapture_v2, (Handle, int), other, 0);
        launch(other, 5000);
        used_us = before;
        launch(stream, 2000);
        CU(cuStreamEndCapture, (Handle, Handle *), other, &graph);
        CU(cuGraphDestroy, (Handle), graph);
    }
}

/* The long one last, behind short ones that are waited for, and in the other stream. */
void long_behind_short(void)
{
    Handle streams[2] = {new_stream(), new_stream()};
    for (int i = 0; more(); i++) {
        for (int n = 0; n < 20; n++) {
            launch(streams[i % 2], 2);
            wait_for(streams[i % 2]);
        }
        launch(streams[(i + 1) % 2], 15000);
    }
}
