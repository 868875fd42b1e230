/* The commands of vgpu_tool for programs that try to have more than their slice: see tests/adversary. */
#include "vgpu_tool.h"

#include <pthread.h>
#include <string.h>

struct handover {
    pthread_barrier_t start, end;
    uint64_t rounds;
    CUresult released;
};

static void *release(void *argument)
{
    struct handover *self = argument;
    for (uint64_t i = 0; i < self->rounds; i++) {
        pthread_barrier_wait(&self->start);
        self->released |= CU(cuDevicePrimaryCtxRelease_v2)(0);
        pthread_barrier_wait(&self->end);
    }
    return NULL;
}

/* Rounds: one thread releases the first device's primary context while another retains it. -9: after some round the slice
 * looked as if there were no context. */
static CUresult handovers(char **word)
{
    typedef CUresult (*set_current)(CUcontext);
    struct handover self = {.rounds = number(word[1])};
    size_t left = 0, total = 0, unlike = 0;
    CUcontext context;
    pthread_t thread;
    CUresult result = CU(cuDevicePrimaryCtxRetain)(&context, 0);
    pthread_barrier_init(&self.start, NULL, 2);
    pthread_barrier_init(&self.end, NULL, 2);
    pthread_create(&thread, NULL, release, &self);
    for (uint64_t i = 0; i < self.rounds; i++) {
        pthread_barrier_wait(&self.start);
        result |= CU(cuDevicePrimaryCtxRetain)(&context, 0);
        pthread_barrier_wait(&self.end);
        result |= ((set_current)entry("cuCtxSetCurrent"))(context);
        result |= CU(cuMemGetInfo_v2)(&left, &total);
        unlike += left == total;
    }
    pthread_join(thread, NULL);
    return result | self.released ? result | self.released : unlike ? -9 : 0;
}

CUresult beyond(char **word)
{
    return IS("handovers") ? handovers(word) : -1;
}
