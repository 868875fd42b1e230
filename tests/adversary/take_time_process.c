/* Ways of take_time: threads and processes, how they begin and how they end. */
#include "take_time.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static void *of_thread(void *unused)
{
    (void)unused;
    CU(cuCtxSetCurrent, (Handle), context);
    for (int i = 0; more(); i++) {
        launch((Handle)2, 2000);
        if (i % 4 == 3)
            wait_for((Handle)2);
    }
    return NULL;
}

static void some_threads(int count)
{
    pthread_t made[256];
    for (int i = 0; i < count; i++)
        pthread_create(&made[i], NULL, of_thread, NULL);
    for (int i = 0; i < count; i++)
        pthread_join(made[i], NULL);
}

static void threads(void)
{
    some_threads(16);
}

static void *once_in_thread(void *stream)
{
    CU(cuCtxSetCurrent, (Handle), context);
    launch(stream, 20000);
    return NULL;
}

/* Launched by threads that end at once. */
static void short_threads(void)
{
    while (more()) {
        pthread_t made;
        pthread_create(&made, NULL, once_in_thread, (Handle)2);
        pthread_join(made, NULL);
    }
}

static void *until_cancelled(void *stream)
{
    CU(cuCtxSetCurrent, (Handle), context);
    for (;; pause_for(1))
        launch(stream, 3000);
    return NULL;
}

/* Threads that are cancelled while they launch, or are held back. */
static void cancelled_threads(void)
{
    Handle stream = new_stream();
    while (more()) {
        pthread_t made;
        pthread_create(&made, NULL, until_cancelled, stream);
        pause_for(20000);
        pthread_cancel(made);
        pthread_join(made, NULL);
    }
}

static void in_children(int count, void (*run)(void))
{
    for (int i = 0; i < count; i++)
        if (new_child() == 0) {
            begin();
            run();
            wait_for_all();
            _exit(0);
        }
    while (child_ended())
        ;
}

static void processes(void)
{
    in_children(4, honest);
}

static void queue_of_5_ms(void)
{
    for (Handle stream = new_stream(); more();)
        launch(stream, 5000);
}

static void queues_of_processes(void)
{
    in_children(3, queue_of_5_ms);
}

/* Children that do nothing come and go while kernels are launched. */
static void forking(void)
{
    Handle stream = new_stream();
    while (more()) {
        launch(stream, 2000);
        pid_t child = new_child();
        if (child == 0)
            _exit(0);
        launch(stream, 2000);
        waitpid(child, NULL, 0);
        wait_for(stream);
    }
}

/* The child has all that the parent had, but for the driver's leave to use it. */
static void child_of_fork(void)
{
    CUresult(*call) LAUNCH;
    Handle stream = new_stream();
    *(void **)&call = entry("cuLaunchKernel");
    while (more()) {
        pid_t child = new_child();
        if (child == 0) {
            uint64_t rounds = (uint64_t)(20000 * rounds_a_us);
            void *values[] = {&rounds};
            for (int i = 0; i < 3; i++)
                if (call(function, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, values, NULL) == 0)
                    used(20000);
            _exit(0);
        }
        launch(stream, 1000);
        waitpid(child, NULL, 0);
        wait_for(stream);
    }
}

/* The next program begins while the kernel of this one runs, or is cut off. */
static void by_exec(void)
{
    launch(NULL, 30000);
    pause_for(20000);
    if (more())
        start_over("exec");
}

/* They use the device while they are made, under no launch. */
static void only_contexts(void)
{
    for (Handle made; more(); pause_for(1000)) {
        CU(cuCtxCreate_v2, (Handle *, unsigned, int), &made, 0, 0);
        CU(cuCtxDestroy_v2, (Handle), made);
    }
}

/* Each process leaves 50 ms of kernels behind. */
static void leave_behind(void)
{
    for (int i = 0; i < 10; i++)
        launch(NULL, 5000);
    pause_for(1000);
    _exit(0);
}

static void leaving(void)
{
    do
        in_children(1, leave_behind);
    while (more());
}

const struct way process_ways[] = {{"threads", threads, false},
                                   {"short-threads", short_threads, false},
                                   {"cancelled-threads", cancelled_threads, false},
                                   {"processes", processes, true},
                                   {"queues-of-processes", queues_of_processes, true},
                                   {"forking", forking, false},
                                   {"child-of-fork", child_of_fork, false},
                                   {"only-contexts", only_contexts, false},
                                   {"exec", by_exec, false},
                                   {"leaving", leaving, true},
                                   {0}};
