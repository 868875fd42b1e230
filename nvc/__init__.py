"""nvc: NVIDIA GPUs, or slices of them, for containers."""

__version__ = "0.1.0"
