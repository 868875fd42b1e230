"""Questions to nvcd: whether it runs, its state, and an MPS server for a slice."""
