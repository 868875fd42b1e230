"""How GPUs are, and who is told."""
