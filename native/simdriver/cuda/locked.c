/* This process's side of cuCheckpoint*: its calls wait while another process has it locked.
 *
 * It tells the shared state how many threads are in calls and how many operations have not ended, and then looks whether it
 * is to be locked; who locks it does that the other way round. So one of both sees the other. */
#include "driver.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LOOK_NS = 50000000 }; /* whoever unlocks us may be killed before it wakes us */

/* NULL: nobody can lock us, as the ledger does not know us yet. */
static struct sim_slot *own_slot(struct driver *in)
{
    return in->state && ledger_has_slot(in) ? &in->state->slots[in->slot] : NULL;
}

static void tell(struct driver *in)
{
    struct sim_slot *slot = own_slot(in);
    if (!slot)
        return;
    atomic_store(&slot->inside, in->inside);
    atomic_store(&slot->pending, in->pending);
}

void locked_enter(struct driver *in)
{
    struct timespec most = {.tv_nsec = LOOK_NS};
    for (;;) {
        in->inside++;
        tell(in);
        struct sim_slot *slot = own_slot(in);
        uint32_t state = slot ? atomic_load(&slot->process) : CU_PROCESS_STATE_RUNNING;
        if (state == CU_PROCESS_STATE_RUNNING)
            return;
        in->inside--;
        tell(in);
        pthread_mutex_unlock(&in->lock);
        syscall(SYS_futex, &slot->process, FUTEX_WAIT, state, &most, NULL, 0);
        pthread_mutex_lock(&in->lock);
    }
}

void locked_leave(struct driver *in)
{
    in->inside--;
    tell(in);
}

/* Without the lock: a slot is claimed once, and what waits for the lock would change how tenants in turn meet. */
bool locked_is_away(void)
{
    struct driver *in = driver();
    if (!in) /* no cuInit yet */
        return false;
    const struct sim_slot *slot = own_slot(in);
    uint32_t state = slot ? atomic_load(&slot->process) : CU_PROCESS_STATE_RUNNING;
    return state == CU_PROCESS_STATE_CHECKPOINTED || state == SIM_PROCESS_LOST;
}

void locked_pending(int change)
{
    struct driver *in = driver();
    in->pending += (uint32_t)change;
    tell(in);
}
