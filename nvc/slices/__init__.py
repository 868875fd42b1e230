"""Slices of GPUs: a limit on memory that the container's own libcuda, the shim, keeps. See docs/vgpu.md.

Each package imports only from those before it:
    model: values and file formats
    policy: what is set for a device and what follows from it; client: what is asked of nvcd
    store: the slices of this host
    build: how a container or a program gets a slice
    admin: how slices are changed and checked
    show: how slices are shown
"""
