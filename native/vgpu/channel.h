/* The connection with nvcd. */
#ifndef NVC_VGPU_CHANNEL_H
#define NVC_VGPU_CHANNEL_H

#include "process.h"
#include "protocol.h"

#include <string.h>

/* Connects and says HELLO; false: nvcd does not run here. */
bool channel_open(struct process *in);
void channel_close(struct process *in);

/* Has the thread that reads see the end of it. */
void channel_end(const struct process *in);

/* -1: there is none. The program may close any descriptor, and get its number for something else: each use looks first
 * whether it is still ours. */
int channel_descriptor(const struct process *in);

bool channel_send(struct process *in, const struct nvcd_message *message);

/* 1: a message, 0: none is there, -1: the connection is over. */
int channel_receive(struct process *in, struct nvcd_message *out);

#endif
