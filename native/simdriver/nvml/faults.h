/* Faults of simulated GPUs, which whoever tests monitoring writes into a file of the driver root:
 *
 *     proc/driver/nvidia/sim/faults    lines `UUID NAME VALUE`
 *
 * Names: xid (each line is one event), ecc (uncorrected errors), remapping (1: pending, 2: failed), lost, fabric (a state
 * of nvml.h) and fabric-status (its nvmlReturn_t). The file is read again by each call, so a fault is over when its line
 * is gone. */
#pragma once

#include "library.h"

/* The value of the last line of that name for the GPU of a device, 0 without one. */
unsigned long long nvml_fault(const struct nvml_device *device, const char *name);

/* How many events there are, and of the one after the first `seen` the GPU and the number. */
uint32_t nvml_events(uint32_t seen, const struct nvml_device **device, unsigned long long *xid);
