"""Simulated NVIDIA drivers: driver roots for machines without a GPU.

    from nvc.testing.sim import SimSpec, create
    create("/srv/sim", SimSpec(gpus=2, mig=("7x1g.10gb", "")))

What is simulated by compiled code is in native/simdriver; this package lays files out around it.
"""

from __future__ import annotations

from nvc.testing.sim.layout import create, destroy, is_root
from nvc.testing.sim.spec import SimSpec

__all__ = ["SimSpec", "create", "destroy", "is_root"]
