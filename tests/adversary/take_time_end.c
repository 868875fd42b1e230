/* Ways of take_time: processes that end, or change, in the middle of something; and floods. */
#include "take_time.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STORM = 3, STEPS = 6 };

static void end_by_kill(void *unused)
{
    (void)unused;
    raise(SIGKILL);
}

static void end_thread(void *unused)
{
    (void)unused;
    pthread_exit(NULL);
}

/* Kernels of 20 ms, and a function between them that ends the process, or the driver's thread. */
static void until_called(void (*called)(void *))
{
    Handle stream = new_stream();
    launch(stream, 20000);
    CU(cuLaunchHostFunc, (Handle, void (*)(void *), void *), stream, called, NULL);
    launch(stream, 20000);
    used(-20000); // it never runs: the function before it does not return
    while (more())
        pause_for(1000);
}

static void in_child_until_called(void (*called)(void *))
{
    do {
        if (new_child() == 0) {
            begin();
            until_called(called);
            _exit(0);
        }
        wait(NULL);
    } while (more());
}

static void kill_in_callback(void)
{
    in_child_until_called(end_by_kill);
}

/* What is behind it in the stream never runs, and the stream never ends; the others go on. */
static void thread_ends_in_callback(void)
{
    if (new_child() == 0) {
        begin();
        Handle stream = new_stream(), other = new_stream();
        CU(cuLaunchHostFunc, (Handle, void (*)(void *), void *), stream, end_thread, NULL);
        for (launch(stream, 20000); more(); wait_for(other))
            launch(other, 1000);
        _exit(0);
    }
    wait(NULL);
}

/* Of each process that is begun another step is the last. */
static void die_after(int steps)
{
    begin();
    Handle stream = steps > 0 ? new_stream() : NULL;
    if (steps > 1)
        launch(stream, 2000);
    if (steps > 2)
        launch(stream, 2000);
    if (steps > 3)
        wait_for(stream);
    if (steps > 4)
        CU(cuStreamDestroy_v2, (Handle), stream);
    raise(SIGKILL);
}

static void dying(void)
{
    int begun = 0;
    do {
        if (new_child() == 0)
            die_after(begun % STEPS);
        wait(NULL);
        begun++;
        pause_for(20000);
    } while (more() || begun < STEPS);
}

/* Where a process takes long to start, or waits for credit, fewer come. */
static void storm(void)
{
    pid_t alive[STORM] = {0};
    for (int begun = 0; more(); pause_for(5000))
        for (int i = 0; i < STORM; i++) {
            if (alive[i] && waitpid(alive[i], NULL, WNOHANG) == 0)
                continue;
            alive[i] = new_child();
            if (alive[i] == 0)
                die_after(begun % STEPS);
            begun++;
            break;
        }
    for (int i = 0; i < STORM; i++)
        if (alive[i] > 0 && kill(alive[i], SIGKILL) == 0)
            waitpid(alive[i], NULL, 0);
}

static void *launch_on(void *stream)
{
    CU(cuCtxSetCurrent, (Handle), context);
    while (more())
        launch(stream, 1000);
    return NULL;
}

/* A copy of the process in which another thread was in a launch, or held back in one. */
static void fork_in_launch(void)
{
    pthread_t made;
    pthread_create(&made, NULL, launch_on, new_stream());
    while (more()) {
        pid_t child = new_child();
        if (child == 0)
            _exit(0);
        waitpid(child, NULL, 0);
        pause_for(700);
    }
    pthread_join(made, NULL);
}

/* Nothing that is opened by its path is there any more. */
static void change_root(void)
{
    Handle stream = new_stream();
    char empty[] = "/tmp/take_time-XXXXXX";
    for (int i = 0; more(); i++) {
        launch(stream, 1000);
        if (i == 20 && (!mkdtemp(empty) || chdir(empty) || rmdir(empty) || chroot(".")))
            perror(empty);
        wait_for(stream);
    }
}

static void in_another_root(void)
{
    if (new_child() == 0) {
        begin();
        change_root();
        _exit(0);
    }
    wait(NULL);
}

const struct way end_ways[] = {{"kill-in-callback", kill_in_callback, true},
                               {"thread-ends-in-callback", thread_ends_in_callback, true},
                               {"dying", dying, true},
                               {"storm", storm, true},
                               {"fork-in-launch", fork_in_launch, false},
                               {"another-root", in_another_root, true},
                               {0}};
