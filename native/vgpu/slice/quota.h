/* Reading the quota. The account lock is held. */
#pragma once

#include "process/process.h"

/* Brings the copy in `in` up to date; false: there is none that can be trusted, and the log says why. */
bool quota_read(struct process *in);

/* What nvcd said last of a device's pace, and of who keeps its time, after a good quota_read(); 0: nothing. */
void quota_refresh(const struct process *in, int position, struct vgpu_quota_device *device);
