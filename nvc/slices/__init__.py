"""Slices of GPUs: limits on memory and GPU time, which the shim in the container enforces. See docs/vgpu.md.

Each package imports only from those before it:
    model: values and file formats
    policy: device policies, and the entitlements that follow; client: questions to nvcd
    store: the slices of this host
    build: makes slices for containers and programs
    admin: changes and checks slices
    show: tables, the interactive `top`, drawings
"""
