"""nvcd and real containers: their processes are known by what the kernel says of them, and share devices."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from typing import Any

from support import CLEAN_ENV, PATIENCE, until
from support.dialog import Dialog
from support.nvcd import Place, ask, eventually
from support.nvcd_programs import started
from support.rootfs import LIBS
from support.tracing import build_calls
from support.vgpucap import Worker


def test_they_are_known_and_come_back(place: Place, driver: str, container: Any, work: str) -> None:
    """In pid namespaces of their own, and again when nvcd was killed."""
    place.start(f"--root={driver}")
    workers = []
    for weight in (1, 3):
        made = container(f"--vgpu-weight={weight}", place=place)
        shutil.copy(work, f"{made.bundle.rootfs}/tmp/work")
        words = (*made.bundle.command("runc"), "exec", made.name, "/tmp/work")
        workers.append(Worker(words[0], CLEAN_ENV, *words[1:], ns=1000000, batch=0, warm=0.5, seconds=600))
    for worker in workers:
        worker.started()

    def known(state: Any) -> bool:
        """Both, each with the memory of its context."""
        return sorted(one["weight"] for device in state["devices"] for one in device["tenants"]) == [
            1,
            3,
        ] and (sum((one["truth"] or 0) > 0 for one in state["memory"]) == 2)

    for _ in range(2):
        eventually(place, known)
        assert place.daemon is not None
        place.daemon.kill()
        place.start(*place.words)
    assert all(worker.stop().kernels for worker in workers)


def test_whoever_enters_one_is_guarded_from_the_first_call(place: Place, driver: str, container: Any) -> None:
    """It starts channels, and is killed before that call returns."""
    place.start(f"--root={driver}")
    made = container("--vgpu-weight=1", place=place)
    words = ("nsenter", f"--target={made.pid}", "--pid", build_calls("64"), "/dev/null")

    def said() -> str:
        return subprocess.run(words, input="break plain\n", stdout=subprocess.PIPE, text=True).stdout

    until(lambda: said() == "ready\n")
    assert ask(place)["timekeeper"]["killed"] > 0


#: Root of a user namespace, without a right outside, leaves all but devices and the driver's library behind.
HIDE = f"""set -e
busybox mount -t tmpfs none $1
for d in bin lib lib64 tmp dev proc old; do busybox mkdir $1/$d; done
for d in bin lib lib64 tmp dev proc; do busybox mount --rbind /$d $1/$d; done
busybox cp {LIBS}/nvc/real-libcuda.so.1 $1
cd $1
busybox pivot_root . old
busybox umount -l old
! busybox grep /quota /proc/self/mountinfo
exec /tmp/vgpu_tool /real-libcuda.so.1
"""


def test_a_process_that_hides_its_slice(place: Place, driver: str, container: Any, tool: str) -> None:
    """It shows no file of the slice, and has more than its limit for as long as NVML's next answer takes."""
    started(place, driver, '[nvcd]\non-excess = "stop"\n')
    made = container("--vgpu-memory=2g", place=place)
    container("--vgpu-memory=2g", place=place)
    with open(f"{made.bundle.rootfs}/tmp/hide", "w", encoding="ascii") as script:
        script.write(HIDE)
    shutil.copy(tool, f"{made.bundle.rootfs}/tmp/vgpu_tool")
    os.mkdir(f"{made.bundle.rootfs}/tmp/hidden", 0o777)
    os.chown(f"{made.bundle.rootfs}/tmp/hidden", 1000, 1000)
    words = (
        "exec",
        "--user=1000:1000",
        made.name,
        "/bin/busybox",
        "unshare",
        "-Urm",
        "/bin/sh",
        "/tmp/hide",
    )
    program = Dialog([*made.bundle.command("runc"), *words, "/tmp/hidden"], CLEAN_ENV)
    for command in ("init", "primary 0"):
        program.send(command)
        assert program.receive()[0] == "0", command
    program.send("alloc a 4g")  # it may be stopped before it can say that it has it
    found = eventually(place, lambda state: state["found"]["excess"] == 1)
    (mine,) = [one["key"] for one in found["slices"] if one["rootfs"] == made.bundle.rootfs]
    # Where more than a second passed before it had too much, its way around the shim was reported first.
    # It may have ended by now, which is an event too.
    assert {event["key"] for event in found["events"] if event["kind"] == "excess"} == {mine}
    program.process.communicate(timeout=PATIENCE)
    assert program.process.returncode == 128 + signal.SIGKILL
