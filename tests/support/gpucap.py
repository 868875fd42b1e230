"""Programs that keep a real GPU busy, with kernels of a known length."""

from __future__ import annotations

from . import gpus
from .vgpucap import Capped


class Sliced(Capped):
    """One on the GPU that tests of a real driver use. Calibrates a kernel's loop once for each length and grid."""

    known: dict[tuple[int, int], int]

    def __init__(self, root: str, shims: str, program: str) -> None:
        self.workers = []
        self.make(gpus.place_of_slice(root), shims, program, gpus.libraries(), [gpus.uuid()])

    def environment(self, **variables: str) -> dict[str, str]:
        return super().environment(**{**gpus.visible(), **variables})

    def rounds(self, ns: int, grid: int = 1) -> int:
        if (ns, grid) not in self.known:
            worker = self.native(ns=ns, grid=grid, seconds=0.05, warm=0.05).started()
            self.known[ns, grid] = worker.result().rounds
        return self.known[ns, grid]
