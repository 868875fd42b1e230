/* What the driver's table has as HOLD: each is called as it is, once it may be. */
#include "charge/charge.h"
#include "charge/items.h"
#include "hold.h"

/* A row has the types of its parameters alone. */
#define NTH(a, b, c, d, e, f, g, h, i, n, ...) n
#define COUNT(...) NTH(__VA_ARGS__, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define JOIN(one, other) one##other
#define WITH(name, count) JOIN(name, count)
#define DECLARED(A, a) A a
#define NAME(A, a) a
#define NAMED(...) WITH(EACH_, COUNT(__VA_ARGS__))(DECLARED, __VA_ARGS__)
#define NAMES(...) WITH(EACH_, COUNT(__VA_ARGS__))(NAME, __VA_ARGS__)
#define EACH_1(F, A) F(A, a)
#define EACH_2(F, A, ...) F(A, b), EACH_1(F, __VA_ARGS__)
#define EACH_3(F, A, ...) F(A, c), EACH_2(F, __VA_ARGS__)
#define EACH_4(F, A, ...) F(A, d), EACH_3(F, __VA_ARGS__)
#define EACH_5(F, A, ...) F(A, e), EACH_4(F, __VA_ARGS__)
#define EACH_6(F, A, ...) F(A, f), EACH_5(F, __VA_ARGS__)
#define EACH_7(F, A, ...) F(A, g), EACH_6(F, __VA_ARGS__)
#define EACH_8(F, A, ...) F(A, h), EACH_7(F, __VA_ARGS__)
#define EACH_9(F, A, ...) F(A, i), EACH_8(F, __VA_ARGS__)

#undef ENTRY
#define ENTRY(class, symbol, name, since, ...) IF_##class(symbol, __VA_ARGS__)
#define IF_ACCOUNT(...)
#define IF_PASS(...)
#define IF_GATE(...)
#define IF_VIEW(...)
#define IF_CALL(...)
#define IF_HOLD(symbol, memory, types)                                                                      \
    CU_API CUresult symbol(NAMED types)                                                                     \
    {                                                                                                       \
        return HELD(REAL(symbol)(NAMES types));                                                             \
    }
#include "abi/cuda.def"

/* Captures are noted, since a wait for a context ends them. They end with the stream, or with its context. */
static CUresult captures(CUstream stream, CUresult result, bool begins)
{
    struct target to;
    struct item item = {.kind = ITEM_CAPTURE};
    item.key = KEY(stream) > 2 ? KEY(stream) : (uint64_t)syscall(SYS_gettid);
    bool ended = result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ||
                 result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    if (begins && result == CUDA_SUCCESS) {
        item.context = target_stream(stream, &to) ? to.context : 0;
        item_put(&item);
    } else if (!begins && ended)
        item_take(ITEM_CAPTURE, item.key, &item);
    return result;
}

#define BEGIN(name, parameters, arguments)                                                                  \
    TWINS(name, parameters, HELD(captures(stream, REAL_IN(per_thread, name) arguments, true)))
BEGIN(cuStreamBeginCapture, (CUstream stream), (stream))
BEGIN(cuStreamBeginCapture_v2, (CUstream stream, int mode), (stream, mode))
BEGIN(cuStreamBeginCaptureToGraph,
      (CUstream stream, CUgraph graph, const CUgraphNode *nodes, const void *data, size_t count, int mode),
      (stream, graph, nodes, data, count, mode))
BEGIN(cuStreamBeginRecaptureToGraph, (CUstream stream, int mode, CUgraph graph, void *callback, void *data),
      (stream, mode, graph, callback, data))
TWINS(cuStreamEndCapture, (CUstream stream, CUgraph *graph),
      captures(stream, REAL_IN(per_thread, cuStreamEndCapture)(stream, graph), false))
WRAP(cuStreamDestroy, (CUstream stream),
     (captures(stream, CUDA_SUCCESS, false), REAL(cuStreamDestroy)(stream)))
WRAP(cuStreamDestroy_v2, (CUstream stream),
     (captures(stream, CUDA_SUCCESS, false), REAL(cuStreamDestroy_v2)(stream)))
