"""What is asked of nvcd: whether it runs, control questions, an MPS server for a slice."""
