"""`nvc-cli vgpu advise` beside slices that work on a simulated GPU under nvcd."""

from __future__ import annotations

import json
import subprocess

from support import CLEAN_ENV, PATIENCE, run
from support.nvcd import Place


def test_a_loop_that_waits_beside_one_that_does_not(
    place: Place, launcher: str, driver: str, work: str
) -> None:
    place.start(f"--root={driver}")

    def start(name: str, **arguments: object) -> subprocess.Popen[str]:
        words = place.sliced(
            launcher, driver, "--device=0", "--memory=4g", "--policy=weight", f"--name={name}"
        )
        words += [work, "seconds=600", "warm=0.1", *(f"{key}={value}" for key, value in arguments.items())]
        pipe = subprocess.PIPE
        made = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=CLEAN_ENV)
        assert made.stdout is not None and made.stdout.readline().startswith("start")
        return made

    def advise(*words: str) -> str:
        return run(
            *place.enter(launcher, f"--root={driver}", "vgpu", "advise", "--seconds=1", *words)
        ).stdout

    working = [start("chat", ns=500000, batch=1), start("train", ns=1000000, batch=0)]
    try:
        (device,) = json.loads(advise("--format=json"))["devices"]
        found = {one["name"]: one for one in device["slices"]}
        assert set(found) == {"chat", "train"} and device["busyPercent"] is not None
        shown = advise("0")
        assert "Advice: leave it at weight" in shown, shown
    finally:
        for one in working:
            one.communicate("\n", timeout=PATIENCE)


def test_without_slices_and_without_that_gpu(place: Place, launcher: str, driver: str) -> None:
    """It says so: there is nothing to look at."""
    words = place.enter(launcher, f"--root={driver}", "vgpu", "advise", "--seconds=0.2")
    nobody = run(*words)
    assert nobody.stdout == "" and "no slice has a process" in nobody.stderr
    other = run(*words, "7", check=False)
    assert other.returncode != 0 and "GPU: 7: no slice with a process uses it" in other.stderr
