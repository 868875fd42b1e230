"""Slices of GPUs: a limit on memory that the container's own libcuda, the shim, keeps. See docs/vgpu.md."""
