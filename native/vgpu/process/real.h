/* The real driver's functions, and how a wrapper is written. */
#pragma once

#include "abi/cuda.h"

#define ENTRY(class, symbol, name, since, ...) class##_ROW(symbol, __VA_ARGS__)
#define REAL_TABLE "abi/cuda.def"
#define REAL_RESULT CUresult
#define REAL_API CU_API
#include "entries.h"

/* Of those that take a stream: with a default one for each thread, or for all. */
#define REAL_IN(per_thread, name) ((per_thread) ? REAL(name##_ptsz) : REAL(name))

/* A call with that context current, or what is in its place where it cannot be. */
#define IN_CONTEXT(context, call, otherwise)                                                                \
    __extension__({                                                                                         \
        CUcontext context_ = (context);                                                                     \
        bool pushed_ = REAL(cuCtxPushCurrent_v2)(context_) == CUDA_SUCCESS;                                 \
        __auto_type inside_ = pushed_ ? (call) : (otherwise);                                               \
        if (pushed_)                                                                                        \
            REAL(cuCtxPopCurrent_v2)(&context_);                                                            \
        inside_;                                                                                            \
    })

/* What the driver wrote goes to the program, from a place of the shim's: another thread may change what the program has. */
#define HAND_OUT(out, made, result)                                                                         \
    __extension__({                                                                                         \
        CUresult handed_ = (result);                                                                        \
        if (handed_ == CUDA_SUCCESS)                                                                        \
            *(out) = (made);                                                                                \
        handed_;                                                                                            \
    })

/* A wrapper that is one value; and one with its twin for programs with a default stream for each thread, whose value looks
 * at `per_thread`. */
#define WRAP_IN(is_per_thread, name, parameters, value)                                                     \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        enum { per_thread = is_per_thread };                                                                \
        return value;                                                                                       \
    }
#define WRAP(name, parameters, value) WRAP_IN(false, name, parameters, value)
#define TWINS(name, parameters, value)                                                                      \
    WRAP_IN(false, name, parameters, value)                                                                 \
    WRAP_IN(true, name##_ptsz, parameters, value)
