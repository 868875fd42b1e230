"""What nvc finds agrees with what the driver's own tool says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import need, run

pytestmark = pytest.mark.gpu
FIELDS = "index,uuid,name,pci.bus_id,driver_version"


def test_info_agrees_with_nvidia_smi(nvc: Callable[..., str]) -> None:
    lines = run(need("nvidia-smi"), f"--query-gpu={FIELDS}", "--format=csv,noheader").stdout.splitlines()
    gpus = [line.split(", ") for line in lines]
    assert gpus
    info = nvc("info")
    for _, uuid, name, bus_id, version in gpus:
        for fact in (uuid, name, bus_id.lower(), version):
            assert fact in info or fact.upper() in info.upper(), f"{fact} is missing:\n{info}"
    assert info.count("GPU-") == len(gpus)
