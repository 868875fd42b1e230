"""nvcd's side of keeping time: who uses the GPUs, what the timekeeper is told, and what slices had."""
