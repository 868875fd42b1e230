/* The commands of vgpu_tool that change the process, and that keep many threads busy. */
#include "vgpu_tool.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* How the process changes under the shim. */
CUresult processes(char **word)
{
    if (IS("closefrom")) {
        for (int fd = 3; fd < 4096; fd++)
            close(fd);
        return 0;
    }
    if (IS("orphan")) { /* a child that lives on, with all descriptors */
        int ends[2];
        if (pipe(ends) != 0)
            return -2;
        pid_t child = fork();
        if (child == 0) {
            close(0);
            close(1);
            close(2);
            for (;;)
                pause();
        }
        *kept_number(word[1]) = (uint64_t)child;
        return 0;
    }
    if (IS("fork")) { /* a child that asks for memory, and goes */
        pid_t child = fork();
        if (child == 0) {
            CUdeviceptr at;
            _exit(CU(cuMemAlloc_v2)(&at, number(word[1])) & 0xff);
        }
        int status;
        waitpid(child, &status, 0);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -3;
    }
    if (IS("unlock")) { /* a child that closes what it has */
        pid_t child = fork();
        if (child == 0) {
            for (int fd = 3; fd < 4096; fd++)
                close(fd);
            _exit(0);
        }
        waitpid(child, NULL, 0);
        return 0;
    }
    if (IS("exec")) {
        execl("/proc/self/exe", "vgpu_tool", (char *)NULL);
        return -2;
    }
    return -1;
}

struct crowd {
    uint64_t size;
    int rounds;
    unsigned int seed;
    int failed;
};

static void *one_of_crowd(void *data)
{
    struct crowd *crowd = data;
    CUdeviceptr have[8] = {0};
    CU(cuCtxSetCurrent)(primary_context());
    for (int i = 0; i < crowd->rounds; i++) {
        CUdeviceptr *at = &have[(unsigned int)rand_r(&crowd->seed) % 8];
        if (*at) {
            crowd->failed |= CU(cuMemFree_v2)(*at) != 0;
            *at = 0;
        } else if (CU(cuMemAlloc_v2)(at, 1 + (uint64_t)rand_r(&crowd->seed) % crowd->size) != 0) {
            *at = 0;
        }
    }
    for (int i = 0; i < 8; i++)
        crowd->failed |= have[i] && CU(cuMemFree_v2)(have[i]) != 0;
    return NULL;
}

/* Threads that allocate and free at random. */
static CUresult threads(char **word)
{
    pthread_t thread[32];
    struct crowd crowd[32];
    int count = (int)number(word[1]) % 33, failed = 0;
    for (int i = 0; i < count; i++) {
        crowd[i] = (struct crowd){number(word[2]), (int)number(word[3]), (unsigned int)i + 1, 0};
        pthread_create(&thread[i], NULL, one_of_crowd, &crowd[i]);
    }
    for (int i = 0; i < count; i++) {
        pthread_join(thread[i], NULL);
        failed |= crowd[i].failed;
    }
    return failed;
}

/* Allocates and frees at random until it is killed, or for so many milliseconds. */
static CUresult churn(char **word)
{
    struct timespec now, end;
    struct crowd crowd = {number(word[1]), 50, (unsigned int)getpid(), 0};
    clock_gettime(CLOCK_MONOTONIC, &end);
    uint64_t until = (uint64_t)end.tv_sec * 1000 + (uint64_t)end.tv_nsec / 1000000 + number(word[2]);
    do {
        crowd.seed = crowd.seed * 5 + 1;
        one_of_crowd(&crowd);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000 < until);
    return crowd.failed;
}

CUresult crowds(char **word)
{
    return IS("threads") ? threads(word) : IS("churn") ? churn(word) : -1;
}
