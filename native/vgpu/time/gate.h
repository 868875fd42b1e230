/* Where launches wait, while nobody keeps time from outside. */
#pragma once

#include "pacer.h"
#include "swap/hold.h"
#include "window.h"

/* A launch is about to be made in a stream: returns when it may, CUDA_SUCCESS, or that it may not, for want of a quota that
 * can be read. In the first case it ends with gate_leave(). */
CUresult gate_enter(struct launch *launch, CUstream stream, bool per_thread);
void gate_leave(struct launch *launch, CUresult result);

/* What the driver answers to a launch, once it may be made. */
#define PACED(stream, per_thread, call)                                                                     \
    HELD(__builtin_expect(window_is_open(), 1) ? (call) : __extension__({                                   \
        struct launch launch_;                                                                              \
        CUresult answer_ = gate_enter(&launch_, stream, per_thread);                                        \
        if (answer_ == CUDA_SUCCESS) {                                                                      \
            answer_ = (call);                                                                               \
            gate_leave(&launch_, answer_);                                                                  \
        }                                                                                                   \
        answer_;                                                                                            \
    }))

/* The program has waited for the device: charges for what has ended. */
void gate_look(void);
