/* Between the two files of leases: who launches, and the thread that talks with nvcd. */
#ifndef NVC_VGPU_LEASE_THREAD_H
#define NVC_VGPU_LEASE_THREAD_H

#include "lease.h"

/* Of a device, for this process. */
enum {
    UNASKED, /* nvcd has not been told that the device is wanted */
    WAITING, /* it has */
    GRANTED,
    FREE,     /* granted, until somebody else wants it */
    DRAINING, /* over: what runs is to end first */
};

/* The thread that is made with the connection, to which its argument, the process, belongs. */
void *lease_attend(void *argument);

/* Everybody goes on without nvcd; who launches in a second or later tries to reach it again. */
void lease_part(struct process *in);

void lease_move(struct lease *lease, uint32_t state);

/* Gives back what is DRAINING; `flags` are NVCD_ENOUGH and NVCD_RUNS. Of two threads that find it drained one says so. False: the
 * connection is of no use. With the second, `changing` is held, and it is DRAINING. */
bool lease_release(struct process *in, int position, uint64_t flags);
bool lease_send_release(struct process *in, int position, uint64_t flags);

/* What is DRAINING waits for the host, or does no longer; said once. False: the connection is of no use. */
bool lease_tell_stall(struct process *in, int position, bool stalled);

#endif
