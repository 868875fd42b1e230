/* Order and time: streams, events, kernels that run side by side or one after the other. */
#include "simdriver_test.h"

#include <pthread.h>
#include <stdatomic.h>

static float time_of_two(const char *name, bool full)
{
    CUevent from, to;
    CUstream one, other;
    CUfunction spin = kernel(name);
    void (*launch)(CUfunction, CUstream, void **) = full ? launch_full : launch_small;
    OK(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&from, 0));
    OK(cuEventCreate(&to, 0));
    OK(cuEventRecord(from, one));
    OK(cuStreamWaitEvent(other, from, 0));
    launch(spin, one, NULL);
    launch(spin, other, NULL);
    OK(cuEventRecord(to, other));
    OK(cuStreamWaitEvent(one, to, 0));
    OK(cuEventRecord(to, one));
    float ms = elapsed(from, to);
    OK(cuStreamDestroy_v2(one));
    OK(cuStreamDestroy_v2(other));
    return ms;
}

/* Small grids share the device, full ones wait for each other. */
static void kernels_overlap_where_they_fit(void)
{
    use_device();
    float together = time_of_two("sim_spin_20ms", false), apart = time_of_two("sim_spin_20ms", true);
    CHECK(together >= 19.9f && together < 30.0f);
    CHECK(apart >= 39.9f && apart < 50.0f);
}

/* The legacy default stream waits for blocking streams and they for it; others do not care. */
static void the_default_stream_waits(void)
{
    CUstream blocking, free_stream;
    CUdeviceptr word;
    uint32_t seen = 0;
    use_device();
    OK(cuMemAlloc_v2(&word, 4));
    OK(cuMemsetD32_v2(word, 1, 1));
    OK(cuStreamCreate(&blocking, 0));
    OK(cuStreamCreate(&free_stream, CU_STREAM_NON_BLOCKING));
    OK(cuCtxSynchronize());
    launch_full(kernel("sim_spin_20ms"), blocking, NULL);
    OK(cuMemsetD32Async(word, 2, 1, blocking));
    OK(cuMemcpyDtoHAsync_v2(&seen, word, 4, free_stream));
    CHECK(seen == 1);
    OK(cuMemcpyDtoH_v2(&seen, word, 4)); /* in the default stream */
    CHECK(seen == 2);
    launch_full(kernel("sim_spin_5ms"), NULL, NULL);
    OK(cuMemsetD32Async(word, 3, 1, blocking));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(blocking));
    OK(cuStreamSynchronize(blocking));
    OK(cuStreamQuery(NULL));
}

static void events_have_rules(void)
{
    CUevent timed, untimed, never;
    float ms;
    use_device();
    OK(cuEventCreate(&timed, 0));
    OK(cuEventCreate(&never, 0));
    OK(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
    OK(cuEventQuery(never));
    OK(cuEventSynchronize(never));
    OK(cuEventRecord(timed, NULL));
    OK(cuEventRecord(untimed, NULL));
    OK(cuCtxSynchronize());
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, timed, untimed));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, timed, never));
    for (int i = 0; i < 40; i++) /* longer than we are kept from asking */
        launch_full(kernel("sim_spin_5ms"), NULL, NULL);
    OK(cuEventRecord(timed, NULL));
    EXPECT(CUDA_ERROR_NOT_READY, cuEventElapsedTime(&ms, timed, timed));
    OK(cuEventDestroy_v2(timed)); /* while it is due */
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(timed, NULL));
    OK(cuCtxSynchronize());
}

static _Atomic int called;

static void set_called(void *value)
{
    atomic_store(&called, *(int *)value);
}

/* Waits for another stream's function: no engine may be blocked by it. */
static void wait_called(void *value)
{
    while (atomic_load(&called) != *(int *)value)
        ;
}

static void functions_of_the_program_run_in_order(void)
{
    static int one = 1, two = 2;
    CUstream stream;
    use_device();
    OK(cuStreamCreate(&stream, 0));
    launch_full(kernel("sim_spin_5ms"), stream, NULL);
    OK(cuLaunchHostFunc(stream, set_called, &one));
    CHECK(atomic_load(&called) == 0);
    OK(cuStreamSynchronize(stream));
    CHECK(atomic_load(&called) == 1);
    OK(cuLaunchHostFunc(stream, set_called, &two));
    OK(cuLaunchHostFunc(stream, wait_called, &two));
    OK(cuStreamSynchronize(stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchHostFunc(stream, NULL, NULL));
}

static void *use_own_stream(void *argument)
{
    CUcontext context = argument;
    OK(cuCtxSetCurrent(context));
    launch_full(kernel("sim_spin_20ms"), CU_STREAM_PER_THREAD, NULL);
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_PER_THREAD));
    OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    return NULL;
}

static void each_thread_has_a_stream(void)
{
    pthread_t thread;
    unsigned int flags;
    CUcontext context = use_device();
    OK(cuStreamQuery(CU_STREAM_PER_THREAD));
    CHECK(pthread_create(&thread, NULL, use_own_stream, context) == 0);
    OK(cuStreamQuery(CU_STREAM_PER_THREAD)); /* ours, not the thread's */
    CHECK(pthread_join(thread, NULL) == 0);
    OK(cuStreamGetFlags(CU_STREAM_PER_THREAD, &flags));
    CHECK(flags == 0);
}

const struct test stream_tests[] = {
    {"kernels_overlap_where_they_fit", kernels_overlap_where_they_fit},
    {"the_default_stream_waits", the_default_stream_waits},
    {"events_have_rules", events_have_rules},
    {"functions_of_the_program_run_in_order", functions_of_the_program_run_in_order},
    {"each_thread_has_a_stream", each_thread_has_a_stream},
    {NULL, NULL},
};
