/* How much longer than its work a launch takes that is waited for: the way to the device, and that of the answer back. It
 * is the same for whatever is launched, so a write of one word is timed on an idle device, from the end of the call to
 * that of the wait. Of that goes what one of many such writes in a full queue takes: the device's own part.
 *
 * The calls that this takes wait for all streams of the program: not while one of them may wait for the program.
 *
 * It is measured once for each device and process. What the program launches meanwhile would make it look longer, so then,
 * and where it is too long to be believed, it is measured again later. Beside the work of others each attempt lasts as long
 * as that work, and the program waits for it: so attempts end with the first wait that is too long, and become rare. In turns
 * an attempt makes all others wait too, and its slice pays for it by turns that it does not get. So there are few of them,
 * but for a cap, which is exact because of this. */
#include "lease.h"
#include "log.h"
#include "meter.h"

/* MOST_NS bounds what a program can hide in a wait. Where a wait takes longer, nothing is taken off, and its slice has less. */
enum {
    ROUNDS = 9,
    OWN_ROUNDS = 3,
    FEW = 8,
    MANY = 40,
    MOST_NS = 15000,
    AGAIN_NS = 1000000,
    PART = 100,
    TRIES = 13,
    TURN_TRIES = 3
};
enum { HOST_MAPPED = 2, UNTIL_AT_LEAST = 0 };

struct tools {
    CUstream stream;
    _Atomic uint32_t *words; /* two, on a page that the device sees at `at`: one to write, one to wait for */
    CUdeviceptr at;
    CUevent begin, end;
};

static bool open_tools(struct tools *tools)
{
    void *page = NULL;
    if (REAL(cuMemHostAlloc)(&page, 2 * sizeof(uint32_t), HOST_MAPPED) != CUDA_SUCCESS)
        return false;
    tools->words = page;
    return REAL(cuMemHostGetDevicePointer_v2)(&tools->at, page, 0) == CUDA_SUCCESS &&
           REAL(cuEventCreate)(&tools->begin, 0) == CUDA_SUCCESS &&
           REAL(cuEventCreate)(&tools->end, 0) == CUDA_SUCCESS;
}

static void close_tools(struct tools *tools)
{
    if (tools->begin)
        REAL(cuEventDestroy_v2)(tools->begin);
    if (tools->end)
        REAL(cuEventDestroy_v2)(tools->end);
    if (tools->words)
        REAL(cuMemFreeHost)((void *)tools->words);
}

static bool write_word(const struct tools *tools)
{
    return REAL(cuMemsetD32Async)(tools->at, 1, 1, tools->stream) == CUDA_SUCCESS;
}

/* Of one that is waited for, nanoseconds. */
static uint64_t alone(const struct tools *tools)
{
    if (!write_word(tools))
        return UINT64_MAX;
    uint64_t start = now_ns(CLOCK_MONOTONIC);
    if (REAL(cuStreamSynchronize)(tools->stream) != CUDA_SUCCESS)
        return UINT64_MAX;
    return now_ns(CLOCK_MONOTONIC) - start;
}

/* Of so many that the device finds in its queue, since it waits until all are there. */
static uint64_t queued(const struct tools *tools, int count)
{
    float milliseconds = 0;
    CUdeviceptr gate = tools->at + sizeof(uint32_t);
    bool good = true;
    atomic_store(&tools->words[1], 0);
    if (REAL(cuStreamWaitValue32_v2)(tools->stream, gate, 1, UNTIL_AT_LEAST) != CUDA_SUCCESS)
        return UINT64_MAX;
    good &= REAL(cuEventRecord)(tools->begin, tools->stream) == CUDA_SUCCESS;
    for (int i = 0; i < count; i++)
        good &= write_word(tools);
    good &= REAL(cuEventRecord)(tools->end, tools->stream) == CUDA_SUCCESS;
    atomic_store(&tools->words[1], 1);
    good &= REAL(cuStreamSynchronize)(tools->stream) == CUDA_SUCCESS;
    if (!good || REAL(cuEventElapsedTime)(&milliseconds, tools->begin, tools->end) != CUDA_SUCCESS)
        return UINT64_MAX;
    return (uint64_t)((double)milliseconds * 1e6);
}

static uint64_t own_part(const struct tools *tools)
{
    uint64_t few = queued(tools, FEW), many = queued(tools, MANY);
    return few == UINT64_MAX || many == UINT64_MAX || many < few ? UINT64_MAX : (many - few) / (MANY - FEW);
}

static uint64_t median(const struct tools *tools, uint64_t (*measure)(const struct tools *), int rounds)
{
    uint64_t found[ROUNDS];
    for (int i = 0; i < rounds; i++) {
        uint64_t next = measure(tools);
        int at = i;
        for (; at > 0 && found[at - 1] > next; at--)
            found[at] = found[at - 1];
        found[at] = next;
    }
    return found[rounds / 2];
}

/* UINT64_MAX: it cannot be told. */
static uint64_t measure(const struct tools *tools)
{
    uint64_t first = alone(tools), second = alone(tools); /* the first of all finds nothing ready */
    if (least(first, second) > MOST_NS)
        return least(first, second);
    uint64_t all = median(tools, alone, ROUNDS), own = median(tools, own_part, OWN_ROUNDS);
    return all == UINT64_MAX || own == UINT64_MAX ? UINT64_MAX : all > own ? all - own : 0;
}

static bool is_worth_it(struct meter *meter)
{
    lock_take(&meter->lock);
    uint32_t cores = meter->cores;
    lock_drop(&meter->lock);
    return cores || atomic_load(&meter->tries) < TURN_TRIES || !lease_takes_turns(meter->position);
}

void latency_measure(struct meter *meter)
{
    struct tools tools = {.stream = (CUstream)(uintptr_t)2};
    struct target to;
    uint64_t began = now_ns(CLOCK_MONOTONIC), serial = atomic_load(&meter->serial), found = UINT64_MAX;
    if (began < atomic_load(&meter->measure_at) || stall_is_expected() || !is_worth_it(meter) ||
        !target_current(&to) || to.position != meter->position || atomic_exchange(&meter->measuring, true))
        return;
    int mode = capture_leave();
    if (open_tools(&tools))
        found = measure(&tools);
    close_tools(&tools);
    capture_return(mode);
    uint64_t ended = now_ns(CLOCK_MONOTONIC);
    bool alone_then = !atomic_load(&meter->busy) && atomic_load(&meter->serial) == serial;
    if (alone_then && found <= MOST_NS)
        atomic_store(&meter->latency, found);
    uint32_t tries = (uint32_t)least(atomic_fetch_add(&meter->tries, 1), TRIES);
    atomic_store(&meter->measure_at, ended + ((uint64_t)AGAIN_NS << tries) + PART * (ended - began));
    atomic_store(&meter->measuring, false);
    log_line("device %d: a wait takes %u ns by itself%s", meter->position,
             (unsigned)least(found, UINT32_MAX), alone_then ? "" : ", not alone");
}
