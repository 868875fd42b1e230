"""nvcd's first words and its end, whatever comes and goes meanwhile."""

from __future__ import annotations

import os
import signal
import sys

from support import PATIENCE, until
from support.nvcd import PATHS, Place

import nvc

#: nvcd, and in the same process a slice that comes and goes while the interpreter clears its modules: it has given
#: signals back to their defaults by then, and the registry is still watched.
LATE = """
import os, sys

class Slice:
    def __del__(self, mkdir=os.mkdir, rmdir=os.rmdir, base="/run/nvc/vgpu/"):
        mkdir(base + "late")
        rmdir(base + "late")
        mkdir(base + "../came-and-went")

sys.last = Slice()  # cleared after all other modules
sys.argv = ["nvcd"]
from nvc_cli.daemon import main
main()
"""


def test_slices_that_go_with_it(place: Place) -> None:
    """Its clients end when it does, and their slices go: that must not end it by SIGIO."""
    place.program = (sys.executable, "-c", LATE)
    daemon = place.start(PYTHONPATH=":".join(PATHS))
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(timeout=PATIENCE) == 0, daemon.said()
    assert os.path.isdir(f"{place.run}/came-and-went"), "the slice was there, at the end of all"


def test_it_says_what_it_is(place: Place, driver: str) -> None:
    said = place.start(f"--root={driver}").said().splitlines()
    assert said[0].startswith(f"<6>nvcd: version {nvc.__version__}, driver 5")
    assert f" in {driver}, 0 slices, " in said[0]
    assert said[0].endswith("sockets /run/nvc/nvcd/tenant/socket and /run/nvc/nvcd/nvcd.sock")
    assert said[1].startswith("<6>nvcd: configuration defaults: policy automatic, on-bypass report")
    assert len(said) == 2


def test_foreign_values_that_it_does_not_use(place: Place, driver: str, scratch: str) -> None:
    """NVIDIA's file may have what only others understand: nvcd says so and runs."""
    path = os.path.join(scratch, "config.toml")
    with open(path, "w", encoding="utf-8") as out:
        out.write(
            f'[nvidia-container-cli]\nroot = "{driver}"\nload-kmods = "later"\n'
            '[nvidia-container-runtime]\nmode = "of tomorrow"\n'
            '[nvidia-container-runtime.modes.legacy]\ncuda-compat-mode = ""\n'
        )
    said = place.start(f"--config={path}").said().splitlines()
    assert f"driver 580.159.04-sim in {driver}" in said[0] and f"configuration {path}: " in said[1]
    wanted = ("load-kmods: want true or false", "mode: want one of auto, legacy, hook, csv, cdi, jit-cdi")
    for line, cause in zip(said[2:], wanted, strict=True):
        assert line.startswith(f"<4>nvcd: {path}: [nvidia-container-") and cause in line
        assert line.endswith("; what uses it does not start")


def test_it_waits_for_its_predecessor(place: Place) -> None:
    """As in a rolling update: it serves as soon as that one has ended, even if killed."""
    first = place.start()
    second = place.begin("--wait")
    until(lambda: f"waits until the nvcd of process {first.pid} has ended" in second.said())
    assert not second.is_ready()
    first.kill()
    second.wait().end()
