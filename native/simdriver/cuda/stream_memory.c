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

CU_TWINS(_ptsz, cuLaunchHostFunc, (CUstream stream, CUhostFn function, void *argument),
         launch_host(OWN(stream), function, argument))

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

CU_TWINS(_ptsz, cuStreamAddCallback,
         (CUstream stream, CUstreamCallback callback, void *argument, unsigned int flags),
         add_callback(OWN(stream), callback, argument, flags))

/* A wait for, or a write of, a word of 32 or 64 bits. */
struct word {
    uint64_t address;
    uint32_t value;
    unsigned int flags; /* of a wait: 0 at least, 1 equal, 2 any common bit, 3 not all bits */
    bool is_write;
};

static bool word_is_reached(struct op *op)
{
    const struct word *word = op_data(op);
    uint32_t now = __atomic_load_n((uint32_t *)(uintptr_t)word->address, __ATOMIC_ACQUIRE);
    switch (word->flags & 3) {
    case 0:
        return (int32_t)(now - word->value) >= 0;
    case 1:
        return now == word->value;
    case 2:
        return (now & word->value) != 0;
    default:
        return ~(now | word->value) != 0;
    }
}

static void write_word(struct op *op)
{
    const struct word *word = op_data(op);
    __atomic_store_n((uint32_t *)(uintptr_t)word->address, word->value, __ATOMIC_RELEASE);
}

static CUresult submit_word(CUstream handle, struct word word)
{
    CU_STREAM(stream, handle);
    CU_ARGUMENT(word.address % sizeof(word.value) == 0);
    CU_TRY(memory_touch(word.address, sizeof(word.value), word.is_write));
    struct op *op = op_new(OP_POLL, sizeof(word));
    CU_REQUIRE(op, CUDA_ERROR_OUT_OF_MEMORY);
    memcpy(op_data(op), &word, sizeof(word));
    if (word.is_write)
        op->run = write_word;
    else
        op->ready = word_is_reached;
    return engine_submit(stream, op);
}

#define WORD(name, writes)                                                                                  \
    CU_TWINS(_ptsz, name, (CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags),       \
             submit_word(OWN(stream), (struct word){address, value, flags, writes}))

WORD(cuStreamWaitValue32_v2, false)
WORD(cuStreamWriteValue32_v2, true)
