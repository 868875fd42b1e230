"""Programs that try to have more of a GPU's time than their cap: none has more than that and one kernel's length.

A kernel of tests/adversary/take_time.c takes as long as it says, by a calibration without the shim. Each program
runs for `NVC_SECONDS`.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable

import pytest
from support import REPO, run
from support.gpucap import Measured, Sliced

pytestmark = pytest.mark.gpu

SECONDS = float(os.environ.get("NVC_SECONDS", "5"))
WAYS = (
    *("honest", "queue", "alternate", "alternate-queued", "streams", "no-context", "no-wait", "new-streams"),
    *("event", "copy", "threads", "new-contexts", "graphs", "random", "short-threads", "null-stream"),
    *("callback", "another-waits", "capture", "long-behind-short"),
)
#: The longest that any of them has under way when its cap is reached, in seconds.
BURST = {"alternate": 0.1, "alternate-queued": 0.06, "new-contexts": 0.05}


@pytest.fixture(scope="module")
def take_time(
    sliced: Sliced, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, int], tuple[float, float]]:
    program = str(tmp_path_factory.mktemp("take") / "take_time")
    sources = [os.path.join(REPO, "tests/adversary", name) for name in ("take_time.c", "take_time_more.c")]
    run("gcc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-o", program, *sources, "-ldl", "-lpthread")
    bare = {**sliced.environment(), "LD_LIBRARY_PATH": sliced.real_directory()}
    rounds = run(program, "calibrate", "0", env=bare).stdout.strip()

    def take(way: str, cap: int) -> tuple[float, float]:
        sliced.cap(cap)
        before = sliced.charged()
        done = subprocess.run(
            [program, way, str(SECONDS), rounds],
            env=sliced.environment(NVC_VGPU_LOG="stderr"),
            capture_output=True,
            text=True,
        )
        print(done.stderr)
        assert done.returncode == 0, done.stderr
        used, took = (float(word) / 1e3 for word in done.stdout.split())
        return 100 * used / took, 100 * (sliced.charged() - before) / took

    return take


@pytest.mark.parametrize("cap", [10, 50])
@pytest.mark.parametrize("way", WAYS)
def test_adversary_time(
    take_time: Callable[[str, int], tuple[float, float]], way: str, cap: int, measured: Measured
) -> None:
    share, charged = take_time(way, cap)
    measured(f"{way} at {cap} %", f"had {share:.2f} %, charged {charged:.2f} %")
    assert share <= cap + 1 + 100 * BURST.get(way, 0.01) / SECONDS


def test_adversary_starting_over(
    take_time: Callable[[str, int], tuple[float, float]], sliced: Sliced, measured: Measured
) -> None:
    """A kernel a process, again and again: what one leaves unpaid the next one finds."""
    take_time("once", 10)
    start, used = time.monotonic(), 0.0
    while time.monotonic() - start < 2 * SECONDS:
        share, _ = take_time("once", 10)
        used += 0.2
    share = 100 * used / (time.monotonic() - start)
    measured("200 ms a process at 10 %", f"had {share:.2f} %")
    assert share <= 11 + 100 * 0.2 / (2 * SECONDS)
