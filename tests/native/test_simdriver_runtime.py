"""What a program on NVIDIA's CUDA runtime is told by the simulated libcuda. With the runtime itself:
tests/native/test_sim_programs.py."""

from __future__ import annotations

import sys
from collections.abc import Callable

from support import run
from support.simdriver import environment

#: Asks for private tables by UUID, as libcudart does; prints the results.
ASK = """
import ctypes, sys
driver = ctypes.CDLL("libcuda.so.1")
table = ctypes.c_void_p(1)
for text in sys.argv[1:]:
    print(driver.cuGetExportTable(ctypes.byref(table), bytes.fromhex(text)), table.value)
"""

RUNTIME = "6bd5fb6c5bf4e74a8987d93912fd9df9"
OTHER = "42d85a8123f6cb478298f6e78a3aecdc"


def test_the_runtime_is_told_once_why_it_fails(sim_root: Callable[..., str]) -> None:
    done = run(sys.executable, "-c", ASK, OTHER, RUNTIME, RUNTIME, env=environment(sim_root()))
    assert done.stdout.split("\n")[:3] == ["500 None"] * 3
    assert done.stderr.count("\n") == 1
    assert "libcudart) runs only on NVIDIA's driver" in done.stderr


def test_who_asks_for_another_table_is_told_nothing(sim_root: Callable[..., str]) -> None:
    assert run(sys.executable, "-c", ASK, OTHER, env=environment(sim_root())).stderr == ""
