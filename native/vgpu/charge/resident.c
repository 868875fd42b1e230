#include "resident.h"

#include "process/log.h"
#include "slice/account.h"

#include <errno.h>

enum {
    STEP_US = 1000,
    PATIENCE = 15000, /* steps in which the driver holds nothing up: nvcd may have ended */
    ROOM_US = 10000
};
#define ROOM_NS UINT64_C(60000000000)

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

static bool moves_others(int position, struct vgpu_quota_device *device)
{
    return account_device(position, device) && clock_is_known() &&
           device->room_until > clock_of_host(now_ns(CLOCK_MONOTONIC));
}

/* While the slice itself is away, its time does not run. */
static void wait_for_room(int position, struct vgpu_quota_device *device)
{
    uint64_t begin = now_ns(CLOCK_MONOTONIC);
    uint64_t number = account_count(position, offsetof(struct vgpu_budget, asked));
    while (moves_others(position, device) && (int64_t)(device->answered - number) < 0 &&
           now_ns(CLOCK_MONOTONIC) - begin < ROOM_NS) {
        sleep_us(ROOM_US);
        if (account_is_suspended())
            begin = now_ns(CLOCK_MONOTONIC);
    }
}

bool resident_make_room(int position, uint64_t uncharged)
{
    struct vgpu_quota_device device;
    int before = errno;
    bool waits = moves_others(position, &device) && account_reserve(position, uncharged) == ACCOUNT_GRANTED;
    if (waits) {
        wait_for_room(position, &device);
        account_withdraw(position, uncharged);
    }
    errno = before;
    return waits;
}
