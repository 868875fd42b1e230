"""What NVML says, through the probe."""
