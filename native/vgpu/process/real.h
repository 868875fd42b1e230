/* The real driver's functions: REAL(cuInit)(0) calls one, which is found when first called. */
#ifndef NVC_VGPU_REAL_H
#define NVC_VGPU_REAL_H

#include "abi/cuda.h"

#include <stdatomic.h>
#include <stdbool.h>

/* Of each row of the table that is not PASS. */
#define ENTRY(class, symbol, name, since, ...) class##_ROW(symbol, __VA_ARGS__)
#define PASS_ROW(symbol, ...)
#define GATE_ROW ACCOUNT_ROW
#define VIEW_ROW ACCOUNT_ROW

/* Types, numbers and, for what is wrapped, declarations. */
#define ACCOUNT_ROW(symbol, memory, parameters)                                                             \
    typedef CUresult(*type_##symbol) parameters;                                                            \
    CU_API CUresult symbol parameters;
#define CALL_ROW(symbol, memory, parameters) typedef CUresult(*type_##symbol) parameters;
#include "abi/cuda.def"
#undef ACCOUNT_ROW
#undef CALL_ROW

enum {
#define ACCOUNT_ROW(symbol, memory, parameters) REAL_##symbol,
#define CALL_ROW ACCOUNT_ROW
#include "abi/cuda.def"
#undef ACCOUNT_ROW
#undef CALL_ROW
    REAL_COUNT
};

extern void *_Atomic real_entries[REAL_COUNT];

void *real_find(int index);

static inline void *real_get(int index)
{
    void *entry = atomic_load_explicit(&real_entries[index], memory_order_acquire);
    return __builtin_expect(entry != NULL, 1) ? entry : real_find(index);
}

/* Where the driver lacks it: a function that returns CUDA_ERROR_NOT_SUPPORTED. */
#define REAL(name) ((type_##name)real_get(REAL_##name))

/* Of those that take a stream: with a default one for each thread, or for all. */
#define REAL_IN(per_thread, name) ((per_thread) ? REAL(name##_ptsz) : REAL(name))

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

#endif
