"""Takes the memory of slices off their GPUs, and brings it back, by the driver's checkpoint calls."""
