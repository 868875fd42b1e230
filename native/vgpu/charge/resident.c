#include "resident.h"

#include "slice/account.h"
#include "process/log.h"

#include <errno.h>

enum {
    STEP_US = 1000,
    PATIENCE = 15000
}; /* steps in which the driver holds nothing up: nvcd may have ended */

_Atomic uint64_t resident_due;
static _Atomic bool forsaken; /* it said so for too long */

/* The driver's cuInit() waits until the process has come back. Before it is locked, and after, cuInit() returns at once. */
static void wait(void)
{
    for (int steps = 0; account_is_suspended(); steps++) {
        if (atomic_load(&forsaken))
            return;
        if (steps == PATIENCE) {
            atomic_store(&forsaken, true);
            LOG_ONCE("the quota says that this slice is suspended, and the driver does not: waits are made "
                     "all the same");
            return;
        }
        if (REAL(cuInit)(0) != CUDA_SUCCESS)
            return; /* it has nothing on a device */
        sleep_us(STEP_US);
    }
    atomic_store(&forsaken, false);
}

void resident_look(void)
{
    int before = errno;
    wait();
    errno = before;
    atomic_store(&resident_due, now_ns(CLOCK_MONOTONIC_COARSE) + RESIDENT_NS);
}
