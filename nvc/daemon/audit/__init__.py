"""Whether slices use what they may: NVML's view of processes against ledgers, quotas and shares of time."""
