/* The objects that a context has in the driver's resource manager, if that is there, and what follows from them for time. */
#pragma once

#include "driver.h"

#define CUDA_ERROR_LAUNCH_FAILED ((CUresult)719)

/* Makes the context's client, device, groups and channels; nothing where no resource manager serves this driver. */
CUresult rm_begin(struct context *context);
void rm_end(struct context *context);

/* gate.c: what stops and timeslices mean to this process on a device. Without groups, nothing. */

/* Whether its kernels may run at `time`, and when that changes: `next`, UINT64_MAX if nobody has said so yet. */
bool gate_is_open(const struct device *device, uint64_t time, uint64_t *next);

/* The first moment from `time` on at which they may; `time` if none is known. */
uint64_t gate_opens(const struct device *device, uint64_t time);

/* It looks for stops so often. */
uint64_t gate_look(struct device *device);

/* Whether the context's group was freed behind its back: what it has on the device fails. */
bool gate_is_lost(const struct context *context);

/* Nanoseconds of a turn; 0: no group of ours says so. */
uint64_t gate_length(const struct device *device);

/* Who had the device had it until `end`, and the context of ours from `begin` on. */
void gate_switch(const struct context *context, uint64_t end, uint64_t begin);
void gate_stopped(const struct device *device, uint64_t end);
