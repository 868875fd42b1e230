/* What streams can do beside kernels and copies: functions of the program, and waiting for or writing a word. */
#include "engine.h"
#include "memory.h"
#include "stream.h"

#include <string.h>

struct host_call {
    CUhostFn function;
    CUstreamCallback callback;
    CUstream stream;
    void *argument;
};

static void run_host_call(struct op *op)
{
    const struct host_call *call = op_data(op);
    if (call->callback)
        call->callback(call->stream, CUDA_SUCCESS, call->argument);
    else
        call->function(call->argument);
}

struct op *op_host(CUhostFn function, void *argument)
{
    struct op *op = op_new(OP_HOST, sizeof(struct host_call));
    if (op) {
        struct host_call call = {.function = function, .argument = argument};
        memcpy(op_data(op), &call, sizeof(call));
        op->run = run_host_call;
    }
    return op;
}

void op_host_params(const struct op *op, CUDA_HOST_NODE_PARAMS *out)
{
    const struct host_call *call = op_data(op);
    *out = (CUDA_HOST_NODE_PARAMS){call->function, call->argument};
}

static CUresult launch_host(CUstream handle, CUhostFn function, void *argument)
{
    CU_STREAM(stream, handle);
    CU_ARGUMENT(function);
    CU_TRY(host_functions_ready());
    return engine_submit(stream, op_host(function, argument));
}

CU_API CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *argument)
{
    CU_CALL(launch_host(stream, function, argument));
}

CU_API CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void *argument)
{
    CU_CALL(launch_host(PER_THREAD(stream), function, argument));
}

static CUresult add_callback(CUstream handle, CUstreamCallback callback, void *argument, unsigned int flags)
{
    CU_STREAM(stream, handle);
    CU_ARGUMENT(callback && flags == 0);
    CU_REQUIRE(!stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CU_TRY(host_functions_ready());
    struct op *op = op_host(NULL, argument);
    CU_REQUIRE(op, CUDA_ERROR_OUT_OF_MEMORY);
    ((struct host_call *)op_data(op))->callback = callback;
    ((struct host_call *)op_data(op))->stream = handle;
    return engine_submit(stream, op);
}

CU_API CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *argument,
                                    unsigned int flags)
{
    CU_CALL(add_callback(stream, callback, argument, flags));
}

CU_API CUresult cuStreamAddCallback_ptsz(CUstream stream, CUstreamCallback callback, void *argument,
                                         unsigned int flags)
{
    CU_CALL(add_callback(PER_THREAD(stream), callback, argument, flags));
}

/* A wait for, or a write of, a word of 32 or 64 bits. */
struct word {
    uint64_t address, value;
    unsigned int flags; /* of a wait: 0 at least, 1 equal, 2 any common bit, 3 not all bits */
    bool wide, is_write;
};

static uint64_t load(const struct word *word)
{
    void *at = (void *)(uintptr_t)word->address;
    return word->wide ? __atomic_load_n((uint64_t *)at, __ATOMIC_ACQUIRE)
                      : __atomic_load_n((uint32_t *)at, __ATOMIC_ACQUIRE);
}

static bool word_is_reached(struct op *op)
{
    const struct word *word = op_data(op);
    uint64_t now = load(word);
    switch (word->flags & 3) {
    case 0:
        return word->wide ? (int64_t)(now - word->value) >= 0
                          : (int32_t)((uint32_t)now - (uint32_t)word->value) >= 0;
    case 1:
        return now == word->value;
    case 2:
        return (now & word->value) != 0;
    default:
        return word->wide ? ~(now | word->value) != 0 : (uint32_t) ~(now | word->value) != 0;
    }
}

static void write_word(struct op *op)
{
    const struct word *word = op_data(op);
    void *at = (void *)(uintptr_t)word->address;
    if (word->wide)
        __atomic_store_n((uint64_t *)at, word->value, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint32_t *)at, (uint32_t)word->value, __ATOMIC_RELEASE);
}

static CUresult submit_word(CUstream handle, struct word word)
{
    CU_STREAM(stream, handle);
    size_t size = word.wide ? 8 : 4;
    CU_ARGUMENT(word.address % size == 0);
    CU_TRY(memory_touch(word.address, size, word.is_write));
    struct op *op = op_new(OP_POLL, sizeof(word));
    CU_REQUIRE(op, CUDA_ERROR_OUT_OF_MEMORY);
    memcpy(op_data(op), &word, sizeof(word));
    if (word.is_write)
        op->run = write_word;
    else
        op->ready = word_is_reached;
    return engine_submit(stream, op);
}

#define WORD(name, type, is_wide, writes)                                                                   \
    CU_API CUresult name(CUstream stream, CUdeviceptr address, type value, unsigned int flags)              \
    {                                                                                                       \
        CU_CALL(submit_word(stream, (struct word){address, value, flags, is_wide, writes}));                \
    }                                                                                                       \
    CU_API CUresult name##_ptsz(CUstream stream, CUdeviceptr address, type value, unsigned int flags)       \
    {                                                                                                       \
        CU_CALL(submit_word(PER_THREAD(stream), (struct word){address, value, flags, is_wide, writes}));    \
    }

/* Both versions; the first had to be allowed by a module parameter of the kernel driver. */
WORD(cuStreamWaitValue32, uint32_t, false, false)
WORD(cuStreamWaitValue32_v2, uint32_t, false, false)
WORD(cuStreamWaitValue64, uint64_t, true, false)
WORD(cuStreamWaitValue64_v2, uint64_t, true, false)
WORD(cuStreamWriteValue32, uint32_t, false, true)
WORD(cuStreamWriteValue32_v2, uint32_t, false, true)
WORD(cuStreamWriteValue64, uint64_t, true, true)
WORD(cuStreamWriteValue64_v2, uint64_t, true, true)

static CUresult submit_batch(CUstream stream, unsigned int count, const CUstreamBatchMemOpParams *list)
{
    CU_ARGUMENT(list && count > 0 && count <= 256);
    for (unsigned int i = 0; i < count; i++) {
        int operation = list[i].operation;
        bool wide = operation == 4 || operation == 5, writes = operation == 2 || operation == 5;
        if (operation == 3 || operation == 6)
            continue; /* flushes and barriers: memory here is coherent */
        CU_ARGUMENT(operation >= 1 && operation <= 5);
        uint64_t value = wide ? list[i].value.value64 : list[i].value.value;
        CU_TRY(submit_word(stream,
                           (struct word){list[i].value.address, value, list[i].value.flags, wide, writes}));
    }
    return CUDA_SUCCESS;
}

#define BATCH(name)                                                                                         \
    CU_API CUresult name(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *list,               \
                         unsigned int flags)                                                                \
    {                                                                                                       \
        CU_ARGUMENT(flags == 0);                                                                            \
        CU_CALL(submit_batch(stream, count, list));                                                         \
    }                                                                                                       \
    CU_API CUresult name##_ptsz(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *list,        \
                                unsigned int flags)                                                         \
    {                                                                                                       \
        return name(PER_THREAD(stream), count, list, flags);                                                \
    }

BATCH(cuStreamBatchMemOp)
BATCH(cuStreamBatchMemOp_v2)
