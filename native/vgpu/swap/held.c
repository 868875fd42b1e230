/* What the driver's table has as HOLD: each is called as it is, once it may be. */
#include "charge/charge.h"
#include "charge/items.h"
#include "hold.h"

/* A row has the types of its parameters alone. */
#define NTH(a, b, c, d, e, f, g, h, i, n, ...) n
#define COUNT(...) NTH(__VA_ARGS__, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define JOIN(one, other) one##other
#define WITH(name, count) JOIN(name, count)
#define NAMED(...) WITH(NAMED_, COUNT(__VA_ARGS__))(__VA_ARGS__)
#define NAMES(...) WITH(NAMES_, COUNT(__VA_ARGS__))
#define NAMED_1(A) A a
#define NAMED_2(A, ...) A b, NAMED_1(__VA_ARGS__)
#define NAMED_3(A, ...) A c, NAMED_2(__VA_ARGS__)
#define NAMED_4(A, ...) A d, NAMED_3(__VA_ARGS__)
#define NAMED_5(A, ...) A e, NAMED_4(__VA_ARGS__)
#define NAMED_6(A, ...) A f, NAMED_5(__VA_ARGS__)
#define NAMED_7(A, ...) A g, NAMED_6(__VA_ARGS__)
#define NAMED_8(A, ...) A h, NAMED_7(__VA_ARGS__)
#define NAMED_9(A, ...) A i, NAMED_8(__VA_ARGS__)
#define NAMES_1 a
#define NAMES_2 b, NAMES_1
#define NAMES_3 c, NAMES_2
#define NAMES_4 d, NAMES_3
#define NAMES_5 e, NAMES_4
#define NAMES_6 f, NAMES_5
#define NAMES_7 g, NAMES_6
#define NAMES_8 h, NAMES_7
#define NAMES_9 i, NAMES_8

#define ENTRY(class, symbol, name, since, ...) class##_ROW(symbol, __VA_ARGS__)
#undef ACCOUNT_ROW
#undef PASS_ROW
#undef GATE_ROW
#undef VIEW_ROW
#undef HOLD_ROW
#define ACCOUNT_ROW(...)
#define PASS_ROW(...)
#define GATE_ROW(...)
#define VIEW_ROW(...)
#define CALL_ROW(...)
#define HOLD_ROW(symbol, memory, types)                                                                     \
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
