"""Programs that show the shim another quota or account than the host's: nvcd sees what they have all the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest
from support import CLEAN_ENV, GIB, PATIENCE
from support.dialog import Dialog
from support.nightly import few
from support.nvcd import Place, eventually
from support.rootfs import LIBS
from support.vgpu import ensure_shim

from nvc.model.slices import quota
from nvc.testing.sim.report import report

#: In a mount namespace of the slice's own making: the quota that the shim finds has no limit.
COVERED = 'mount --bind "$1" "$2/nvc/quota"; shift 2; exec "$@"'
#: The shim and its directory again, elsewhere, with that quota.
ELSEWHERE = (
    'cp -a "$2" "$2.own"; cp "$1" "$2.own/nvc/quota"; export LD_LIBRARY_PATH="$2.own"; shift 2; exec "$@"'
)
#: The same, and the slice's own quota is unmounted: no list of mounts has it.
HIDDEN = 'umount -l "$2/nvc/quota"; ' + ELSEWHERE
#: Likewise, in a child of the program.
CHILD = HIDDEN.replace('exec "$@"', '"$@"; exit $?')


@pytest.fixture
def place(stage: str, scratch: str, driver: str) -> Iterator[Place]:
    ensure_shim(stage, scratch)
    made = Place(stage, scratch)
    yield made
    made.end()


@pytest.fixture
def driver(sim_root: Callable[..., str], scratch: str) -> str:
    return sim_root(gpus=1, seed=scratch)


@pytest.mark.parametrize(
    "how", few([CHILD, ELSEWHERE, HIDDEN, COVERED], 3), ids=["child", "elsewhere", "hidden", "covered"]
)
def test_a_quota_of_its_own(
    place: Place, driver: str, launcher: str, tool: str, scratch: str, how: str
) -> None:
    """It has more than its limit of 1 GiB for as long as NVML's next answer takes."""
    config = os.path.join(scratch, "config.toml")
    with open(config, "w", encoding="ascii") as out:
        out.write('[nvcd]\non-excess = "stop"\n')
    place.start(f"--root={driver}", f"--config={config}")
    forged = os.path.join(scratch, "forged")
    fd = os.open(forged, os.O_RDWR | os.O_CREAT, 0o644)
    quota.write(fd, (quota.QuotaDevice(report(driver).gpus[0].uuid, 64 * GIB),))
    os.close(fd)
    words = place.sliced(launcher, driver, "--memory=1g")
    shell = ("unshare", "--mount", "sh", "-c", how, "sh", forged, f"{driver}{LIBS}", tool)
    program = Dialog([*words, *shell], {**CLEAN_ENV, "LD_LIBRARY_PATH": f"{driver}{LIBS}"})
    for command in ("init", "primary 0", "alloc a 4g"):
        program.send(command)
        assert program.receive()[0] == "0", command
    found = eventually(place, lambda state: state["found"]["excess"] == 1)
    assert found["events"][0]["kind"] == "excess"
    program.process.communicate(timeout=PATIENCE)
    assert program.process.returncode == 128 + signal.SIGKILL
