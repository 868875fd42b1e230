"""docs/suspend.md: every command as it is written, with a simulated driver, an nvcd and a slice called `web`."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from support import CLEAN_ENV, REPO, run
from support.nvcd import Place
from support.nvcd_programs import started
from support.rootfs import LIBS
from support.suspended import HOLDER

from nvc.model.slices.suspension import STATES

pytestmark = pytest.mark.driver(gpus=1)

with open(os.path.join(REPO, "docs/suspend.md"), encoding="utf-8") as page:
    TEXT = page.read()


def test_every_command(place: Place, driver: str, launcher: str, scratch: str) -> None:
    started(place, driver)
    os.mkdir(f"{scratch}/bin")
    with open(f"{scratch}/bin/nvc-cli", "w", encoding="ascii") as out:
        out.write(f'#!/bin/sh\nexec "{launcher}" --root={driver} "$@"\n')
    os.chmod(f"{scratch}/bin/nvc-cli", 0o755)
    env = {**CLEAN_ENV, "PATH": f"{scratch}/bin:{CLEAN_ENV['PATH']}"}
    words = place.sliced(launcher, driver, "--memory=4GiB", "--name=web")
    with subprocess.Popen(
        [*words, sys.executable, "-c", HOLDER, "plain", "1000"], text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, env={**CLEAN_ENV, "LD_LIBRARY_PATH": f"{driver}{LIBS}"},
    ) as program:  # fmt: skip
        assert program.stdout is not None and set(program.stdout.readline().split()[1:]) == {"0"}
        by_hand, hooks, idle = re.findall(r"^```sh\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
        shown = run(*place.enter("sh", "-ec", by_hand), env=env).stdout
        assert "\nsuspended  since " in shown and "1518 MiB of 1 process in" in shown, shown
        run(*place.enter("sh", "-ec", hooks), env=env)
        show = place.enter("nvc-cli", "vgpu", "show", "web", "--format=json")
        assert '"resume": "http:8000/wake_up"' in run(*show, env=env).stdout
        run(*place.enter("sh", "-ec", idle), env=env)
        assert "idle-suspend 10m" in run(*place.enter("nvc-cli", "vgpu", "policy", "0"), env=env).stdout
        answer, _ = program.communicate("read\n")
        assert answer == "0 4711\n"


def test_every_state_is_explained() -> None:
    assert all(f"`{state}`" in TEXT for state in STATES)
