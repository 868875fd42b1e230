/* Calls by which a program waits for the device, or asks about it: what they answer shows what has ended, the latency of
 * the answer ago: see latency.c. */
#include "gate.h"
#include "lease.h"

/* Positions with a meter. */
static uint64_t metered(void)
{
    struct process *in = process();
    return in ? atomic_load_explicit(&in->metered, memory_order_relaxed) : 0;
}

#define EACH_POSITION(i)                                                                                    \
    for (uint64_t left_ = metered(), i = 0; left_ && (i = (uint64_t)__builtin_ctzll(left_), true);          \
         left_ &= left_ - 1)

static struct meter *unfinished(uint64_t position)
{
    struct meter *meter = meter_of((int)position);
    return meter && atomic_load_explicit(&meter->busy, memory_order_relaxed) ? meter : NULL;
}

static bool any_unfinished(void)
{
    EACH_POSITION(i)
    if (unfinished(i))
        return true;
    return false;
}

struct asked {
    uint64_t serial[VGPU_DEVICES]; /* of each meter, before the call */
    uint64_t unfinished;           /* a bit for each position that had work then */
};

static void before(struct asked *asked)
{
    asked->unfinished = 0;
    EACH_POSITION(i)
    {
        asked->serial[i] = atomic_load_explicit(&meter_of((int)i)->serial, memory_order_acquire);
        asked->unfinished |= unfinished(i) ? UINT64_C(1) << i : 0;
    }
}

#define NOWHERE UINT64_MAX /* no context, and no stream: which of them have ended is to be asked */

/* What was launched before the call has ended, in a context, or in a stream of one; zero means any. */
static void after(const struct asked *asked, uint64_t context, uint64_t stream)
{
    uint64_t now = now_ns(CLOCK_MONOTONIC), thread = stream == 2 ? this_thread() : 0;
    EACH_POSITION(i)
    {
        struct meter *meter = meter_of((int)i);
        if (!(asked->unfinished >> i & 1))
            continue;
        uint64_t since = atomic_load(&meter->busy), latency = atomic_load(&meter->latency);
        uint64_t off = latency == UINT64_MAX || since > now ? 0 : least(latency, (now - since) / 2);
        /* Another thread may have seen it before. */
        bool stepped = context != NOWHERE && since &&
                       meter_ended(meter, context, stream, thread, asked->serial[i], now - off, true);
        if (!stepped && unfinished(i)) /* in other streams, which may have ended too */
            meter_look(meter, now, off);
        if (unfinished(i))
            continue;
        if (!stepped)
            meter_stepped(meter, now);
        if (latency == UINT64_MAX) /* before another one has the device */
            latency_measure(meter);
        lease_stepped((int)i, now);
    }
}

static uint64_t current(void)
{
    CUcontext context = NULL;
    struct target to;
    if (process() && atomic_load_explicit(&process()->views, memory_order_relaxed))
        return target_current(&to) ? to.context : NOWHERE;
    return REAL(cuCtxGetCurrent)(&context) == CUDA_SUCCESS && context ? (uintptr_t)context : NOWHERE;
}

/* A default stream is one of the current context. */
static void after_stream(const struct asked *asked, CUstream stream)
{
    after(asked, (uintptr_t)stream <= 2 ? current() : 0, (uintptr_t)stream);
}

#define WAIT(name, parameters, arguments, do_after) WAIT_BY(name, parameters, REAL(name) arguments, do_after)
#define WAIT_BY(name, parameters, call, do_after)                                                           \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        struct asked asked;                                                                                 \
        bool known = any_unfinished();                                                                      \
        if (known)                                                                                          \
            before(&asked);                                                                                 \
        CUresult result = call;                                                                             \
        if (known && result == CUDA_SUCCESS)                                                                \
            do_after;                                                                                       \
        reclaim_after_wait();                                                                               \
        return result;                                                                                      \
    }

#define LEGACY(stream) (stream ? stream : (CUstream)(uintptr_t)1)
#define OF_THREAD(stream) (stream ? stream : (CUstream)(uintptr_t)2)

WAIT(cuCtxSynchronize, (void), (), after(&asked, current(), 0))
WAIT(cuCtxSynchronize_v2, (CUcontext context), (context),
     after(&asked, context ? (uintptr_t)context : current(), 0))
WAIT(cuStreamSynchronize, (CUstream stream), (stream), after_stream(&asked, LEGACY(stream)))
WAIT(cuStreamSynchronize_ptsz, (CUstream stream), (stream), after_stream(&asked, OF_THREAD(stream)))
WAIT(cuStreamQuery, (CUstream stream), (stream), after_stream(&asked, LEGACY(stream)))
WAIT(cuStreamQuery_ptsz, (CUstream stream), (stream), after_stream(&asked, OF_THREAD(stream)))
WAIT(cuEventSynchronize, (CUevent event), (event), after(&asked, NOWHERE, 0))
WAIT(cuEventQuery, (CUevent event), (event), after(&asked, NOWHERE, 0))
WAIT(cuMemcpyDtoH, (void *to, unsigned int from, unsigned int size), (to, from, size),
     after(&asked, NOWHERE, 0))
WAIT(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t size), (to, from, size), after(&asked, NOWHERE, 0))
WAIT(cuMemcpyDtoH_v2_ptds, (void *to, CUdeviceptr from, size_t size), (to, from, size),
     after(&asked, NOWHERE, 0))
WAIT_BY(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t size), copy_anywhere(to, from, size, false),
        after(&asked, NOWHERE, 0))
WAIT_BY(cuMemcpy_ptds, (CUdeviceptr to, CUdeviceptr from, size_t size), copy_anywhere(to, from, size, true),
        after(&asked, NOWHERE, 0))
