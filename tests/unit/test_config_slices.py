"""config.toml: what an operator says of slices that contradicts itself."""

from __future__ import annotations

import pytest

from nvc.request.config.file import parse

PATH = "/etc/nvc/config.toml"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vgpu-cores = 30\nvgpu-cores-max = 20", "vgpu-cores: 30 is more than vgpu-cores-max, 20"),
        ("vgpu-cores = 100\nvgpu-cores-max = 20", "vgpu-cores: 100 is more than vgpu-cores-max, 20"),
        ("vgpu-cores = 20\nvgpu-cores-max = 20\nvgpu-policy = 'fixed'", ""),
        ("vgpu-weight = 9\nvgpu-weight-max = 4", "vgpu-weight: 9 is more than vgpu-weight-max, 4"),
        ("vgpu-weight = 9", ""),
        ("vgpu-memory = '2g'\nvgpu-memory-max = '1500m'", "vgpu-memory: 2g is more than vgpu-memory-max, 1500m"),
        ("vgpu-memory = '50%'\nvgpu-memory-max = '10%'", "vgpu-memory: 50% is more than vgpu-memory-max, 10%"),
        ("vgpu-memory = '1g'\nvgpu-memory-max = '10%'", ""),
        ("vgpu-memory = '90%'\nvgpu-memory-max = '1g'", ""),
        ("vgpu-policy = 'fixed'", "vgpu-policy: fixed: each device has no cap for the policy fixed"),
        ("vgpu-policy = 'fixed'\nvgpu-cores-max = 20", ""),
        (
            "vgpu-policy = '5'\nvgpu-cores-max = 20",
            "vgpu-policy: 5: policy native ignores caps, but each device sets 20 %",
        ),
    ],
)
def test_what_stops_every_container_that_asks_for_nothing(text: str, said: str) -> None:
    warnings = parse(f"[nvc]\n{text}".encode(), PATH).warnings
    assert len(warnings) == bool(said)
    assert all(f"{PATH}: [nvc] {said}" in one and "do not start" in one for one in warnings)
