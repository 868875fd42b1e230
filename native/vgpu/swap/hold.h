/* Calls that need memory on the device wait while it is in the host's: see mover.h. Where nothing is moved so, that is a
 * look at one word. Whoever is in such a call is not in another one. */
#pragma once

#include "process/real.h"
#include "process/system.h"

extern _Atomic bool hold_is_used; /* there is memory that can be moved */

/* Waits, and counts the call; false: it does not count. */
bool hold_enter(void);
void hold_leave(void);

#define HELD(call)                                                                                          \
    __extension__({                                                                                         \
        bool held_ =                                                                                        \
            __builtin_expect(atomic_load_explicit(&hold_is_used, memory_order_relaxed), 0) && hold_enter(); \
        __auto_type returned_ = (call);                                                                     \
        if (held_)                                                                                          \
            hold_leave();                                                                                   \
        returned_;                                                                                          \
    })

/* Lets no call begin any more, and waits until none is under way, nor what any of them has begun: CUDA_ERROR_NOT_READY if
 * that is so after HOLD_NS, and calls go on then, whatever becomes of the caller. */
#define HOLD_NS UINT64_C(10000000000)
CUresult hold_close(void);
void hold_open(void);
