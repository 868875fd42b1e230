/* The real driver's functions: REAL(cuInit)(0) calls one, which is found when first called. */
#ifndef NVC_VGPU_REAL_H
#define NVC_VGPU_REAL_H

#include "abi.h"

#include <stdatomic.h>
#include <stdbool.h>

/* Types, numbers and, for what is wrapped, declarations. */
#define ACCOUNT(name, parameters)                                                                           \
    typedef CUresult(*type_##name) parameters;                                                              \
    CU_API CUresult name parameters;
#define GATE ACCOUNT
#define VIEW ACCOUNT
#define CALL(name, parameters) typedef CUresult(*type_##name) parameters;
#include "entries.def"
#undef ACCOUNT
#undef CALL

enum {
#define ACCOUNT(name, parameters) REAL_##name,
#define CALL ACCOUNT
#include "entries.def"
#undef ACCOUNT
#undef CALL
    REAL_COUNT
};
#undef GATE
#undef VIEW

extern void *_Atomic real_entries[REAL_COUNT];

void *real_find(int index);

static inline void *real_get(int index)
{
    void *entry = atomic_load_explicit(&real_entries[index], memory_order_acquire);
    return __builtin_expect(entry != NULL, 1) ? entry : real_find(index);
}

/* Where the driver lacks it: a function that returns CUDA_ERROR_NOT_SUPPORTED. */
#define REAL(name) ((type_##name)real_get(REAL_##name))

#endif
