"""The pages of shared GPUs: every command as it is written, with a simulated driver and a /run/nvc of its own."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from support import CLEAN_ENV, REPO, need, run
from support.vgpu import ensure_shim

from nvc.model.slices.policy import table

PAGES = ("choose-policy", "sharing", "isolation")


def read(page: str) -> str:
    with open(os.path.join(REPO, "docs", f"{page}.md"), encoding="utf-8") as file:
        return file.read()


TEXT = read("sharing")


def test_every_command(stage: str, launcher: str, sim_root: Callable[..., str], scratch: str) -> None:
    ensure_shim(stage, scratch)
    driver = sim_root(gpus=2, mig=("", "1g.10gb,3g.40gb"))
    place = os.path.join(scratch, "bin")
    os.mkdir(place)
    with open(f"{place}/nvc-cli", "w", encoding="ascii") as out:
        out.write(f'#!/bin/sh\nexec "{launcher}" --root {driver} "$@"\n')
    os.chmod(f"{place}/nvc-cli", 0o755)
    os.symlink(os.path.join(os.path.dirname(launcher), "nvc-spin"), f"{place}/nvc-spin")
    env = {**CLEAN_ENV, "PATH": f"{place}:{CLEAN_ENV['PATH']}"}
    # What comes before is typed on a terminal: test_vgpu_screen.py.
    after = "## Ask for GPU time"
    rest = "".join(after + text.partition(after)[2] if after in text else text for text in map(read, PAGES))
    blocks = re.findall(r"^```sh\n(.*?)^```$", rest, re.MULTILINE | re.DOTALL)
    shown = []
    for number, block in enumerate(blocks):
        script = block.replace("/tmp/", f"{scratch}/").replace("--seconds 10", "--seconds 4")
        script = script.replace("--seconds 3", "--seconds 1")
        alone = "mkdir -p /run/nvc && mount -t tmpfs -o mode=700 tmpfs /run/nvc\n"
        path = os.path.join(scratch, f"block{number}")
        with open(path, "w", encoding="ascii") as out:
            out.write(f"set -e\n{alone}{script}")
        shown.append(run(need("unshare"), "--mount", "sh", path, env=env).stdout)
    advising, asking, policies, changing, fencing, held = shown
    assert "Advice: leave it at weight" in advising, advising
    assert asking.count("GPU 0: ") == 3
    assert (
        '"policy": "weight"' in policies
        and '"freeWeight": 16' in policies
        and '"quantumUs": 20000' in policies
    )
    for text in (", at most 60% of its time, weight 4", "CORES", " 60% ", "UTILIZED", "MEAN"):
        assert text in changing, changing
    assert os.path.getsize(f"{scratch}/shares.svg") > 1000
    assert fencing.count("MIG ") >= 1, fencing
    assert "limited by shim, kernel" in held, held


def test_every_policy_and_state_is_explained() -> None:
    assert table() in TEXT, "run make tables"
    for word in ("busy", "idle", "capped", "waiting", "paused", "denied", "gone"):
        assert f"`{word}`" in TEXT
