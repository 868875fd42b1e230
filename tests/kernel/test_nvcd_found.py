"""What nvcd finds of slices, what it does about it, and where that is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import CLEAN_ENV, GIB, PATIENCE, run
from support.nvcd import Place, ask, eventually
from support.nvcd_programs import METRICS, Program, get, one, pid_of_slice, started, told, violation
from support.rootfs import LIBS

pytestmark = pytest.mark.driver(gpus=1)

#: Has 2 GiB and a child that was forked without an exec, which goes on when its parent is killed.
PARENT = """
import ctypes, os, sys
cuda, context, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
codes = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)]
codes += [cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(2 << 30))]
if os.fork() == 0:
    sys.stdin.readline()
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
print(os.getpid(), *codes, flush=True)
sys.stdin.readline()
"""
CHILD = """
import ctypes
cuda, context, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
codes = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)]
print(*codes, cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(3 << 30)), flush=True)
"""


@pytest.mark.nightly
def test_what_the_dead_had_is_given_again(place: Place, driver: str, launcher: str) -> None:
    """Their books are kept open by a child; NVML shows nothing of it, and nobody else can own it."""
    started(place, driver, METRICS)
    words = place.sliced(launcher, driver, "--memory=4g")
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*words, sys.executable, "-c", PARENT, CHILD],
        stdin=pipe, stdout=pipe, text=True, env={**CLEAN_ENV, "LD_LIBRARY_PATH": f"{driver}{LIBS}"},
    ) as program:  # fmt: skip
        assert program.stdin is not None and program.stdout is not None
        parent, *codes = map(int, program.stdout.readline().split())
        assert codes == [0, 0, 0, 0]
        key = eventually(place, lambda s: (one(s)["truth"] or 0) > 2 * GIB)["memory"][0]["key"]
        os.kill(parent, signal.SIGKILL)
        found = eventually(place, lambda s: one(s)["truth"] == 0)
        assert one(found)["model"] > 2 * GIB and found["found"]["overcount"] == 0
        found = eventually(place, lambda s: s["found"]["overcount"])
        found = eventually(place, lambda s: one(s)["model"] == 0 and not s["ongoing"])
        assert [event["action"] for event in found["events"]] == ["corrected", "over"]
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "0 0 0 0\n"
        told(place, launcher, key, "overcount", "corrected")
        assert 'nvc_found_total{kind="overcount"} 1.0' in get(place, "/metrics")


def test_a_process_around_the_shim_is_stopped(place: Place, driver: str, sliced: Any, around: Any) -> None:
    started(place, driver, '[nvcd]\non-bypass = "stop"\n')
    program = sliced("4g")
    other = around(pid_of_slice(place))
    found = eventually(place, lambda s: s["found"]["bypass"] == 1)
    assert other.process.wait(timeout=PATIENCE) == -signal.SIGKILL
    assert found["events"][0]["action"] == f"stopped process {other.process.pid}"
    assert program.code("info")[0] == 0


def test_a_slice_that_has_too_much_is_denied_more(
    place: Place, driver: str, launcher: str, sliced: Any, around: Any
) -> None:
    """By default; and whoever looks is told why, until it is over."""
    started(place, driver, METRICS)
    program = sliced("4g")
    other = around(pid_of_slice(place))
    assert other.code("alloc a 4g")[0] == 0
    before = ask(place)["nvml"]["answers"]
    # One answer may have been under way, and one has come since then.
    found = eventually(place, lambda s: s["denied"] or s["nvml"]["answers"] - before > 3)
    (denied,) = found["denied"]
    assert denied["kind"] == "excess" and denied["text"].endswith(" of 4 GiB")
    assert program.code("alloc b 2m")[0] == 2
    shown = run(*place.enter(launcher, "vgpu", "show", denied["key"])).stdout
    assert f"denied more: excess: {denied['text']}" in shown
    (gauge,) = [line for line in get(place, "/metrics").splitlines() if line.startswith("nvc_slice_denied{")]
    assert denied["key"] in gauge and 'kind="excess"' in gauge and gauge.endswith(" 1.0")
    assert 'action="deny"' in violation(place, "excess")
    other.end()
    eventually(place, lambda s: not s["denied"])
    assert program.code("alloc b 2m")[0] == 0
    assert place.daemon is not None and "is within its limits again; no longer denied" in place.daemon.said()
    assert "denied more" not in run(*place.enter(launcher, "vgpu", "show", denied["key"])).stdout
    assert "nvc_slice_denied{" not in get(place, "/metrics") and not violation(place, "excess")
    told(place, launcher, denied["key"], "excess", "deny", "no longer denied")


def test_a_limit_that_the_operator_lowered_stops_nobody(
    place: Place, driver: str, launcher: str, sliced: Any, around: Any
) -> None:
    """New allocations fail. Once less is in use, the new limit is the only one."""
    started(place, driver, METRICS)
    program = sliced("4g")
    assert program.code("alloc a 2g")[0] == 0 and program.code("module m")[0] == 0
    key = eventually(place, lambda s: (one(s)["truth"] or 0) > 2 * GIB)["memory"][0]["key"]
    said = run(*place.enter(launcher, "vgpu", "set", key, "--memory=1g")).stderr
    assert "its work goes on, but every new allocation fails" in said
    before = ask(place)["nvml"]["answers"]
    found = eventually(place, lambda s: s["nvml"]["answers"] - before > 3)
    assert one(found)["limit"] == GIB and found["found"]["excess"] == 0 and not found["denied"]
    assert program.code("launch m")[0] == 0 and program.code("alloc b 2m")[0] == 2
    about = Path(f"{place.run}/vgpu/{key}/about")
    assert f'"lowered":{4 * GIB}' in about.read_text("ascii")
    assert program.code("free a")[0] == 0
    eventually(place, lambda s: "lowered" not in about.read_text("ascii"))
    other = around(pid_of_slice(place))
    assert other.code("alloc a 2g")[0] == 0
    eventually(place, lambda s: s["denied"])


def test_the_largest_process_of_a_slice_that_has_too_much_is_stopped(
    place: Place, driver: str, sliced: Any, around: Any
) -> None:
    started(place, driver, '[nvcd]\non-excess = "stop"\n')
    program = sliced("4g")
    assert program.code("alloc a 1g")[0] == 0
    other = around(pid_of_slice(place))
    other.send("alloc a 4g")  # it may be stopped before it can say that it has it
    eventually(place, lambda s: s["found"]["excess"] == 1)
    assert other.process.wait(timeout=PATIENCE) == -signal.SIGKILL
    assert program.code("info")[0] == 0


@pytest.mark.parametrize("action", ["report", "deny"])
def test_a_way_around_the_shim_is_told_until_it_is_over(
    place: Place, driver: str, launcher: str, sliced: Any, around: Any, action: str
) -> None:
    started(place, driver, f'{METRICS}on-bypass = "{action}"\n')
    program = sliced("4g")
    other = around(pid_of_slice(place))
    key = eventually(place, lambda s: s["found"]["bypass"] == 1)["memory"][0]["key"]
    assert program.code("alloc b 2m")[0] == (2 if action == "deny" else 0) and other.process.poll() is None
    assert f'action="{action}"' in violation(place, "bypass")
    shown = run(*place.enter(launcher, "vgpu", "show", key)).stdout
    text = f"bypass: process {other.process.pid} uses the device, and has no account"
    assert (f"denied more: {text}" if action == "deny" else f"{text}; report") in shown
    other.end()
    eventually(place, lambda s: not s["ongoing"])
    assert program.code("alloc c 2m")[0] == 0 and not violation(place, "bypass")
    told(place, launcher, key, "bypass", action, "no longer denied" if action == "deny" else "over")


def test_strangers_on_a_shared_device_are_reported(place: Place, driver: str, sliced: Any) -> None:
    started(place, driver)
    sliced("1g", "--policy=first")
    stranger = sliced()
    found = eventually(place, lambda s: s["found"]["stranger"] == 1)
    assert found["events"][0]["pid"] == stranger.process.pid
    assert stranger.process.poll() is None


#: Writes an entry for a process into the ledger of its slice, and keeps the lock on it.
FORGE = """
import os, sys
from nvc.model.slices import layout
from support.locks import lock
fd, slot = os.open(sys.argv[1], os.O_RDWR), 400
head = os.pread(fd, layout.LEDGER_HEADER.size, 0)
fields = list(layout.LEDGER_HEADER.unpack(head))
fields[4] = slot + 1
os.pwrite(fd, layout.LEDGER_HEADER.pack(*fields), 0)
place = layout.LEDGER_HEADER.size + slot * layout.SLOT_HEADER.size
os.pwrite(fd, layout.SLOT_HEADER.pack(int(sys.argv[2]), 0, 0, b"honest"), place)
lock(fd, slot)
print(os.getpid(), flush=True)
sys.stdin.readline()
"""


def test_an_account_of_its_own(place: Place, driver: str, sliced: Any, around: Any) -> None:
    """A process around the shim writes an account for itself: what it has beyond the limit is found."""
    started(place, driver)
    program = sliced("1g")
    pid = pid_of_slice(place)
    other = around(pid)
    ledger = f"{driver}{LIBS}/nvc/ledger/ledger"
    words = ("nsenter", "-t", str(pid), "-m", sys.executable, "-c", FORGE, ledger, str(other.process.pid))
    forger = Program(*words, PYTHONPATH=os.pathsep.join(place.paths))
    forger.receive()
    assert other.code("alloc a 4g")[0] == 0
    found = eventually(place, lambda s: s["found"]["excess"] == 1)
    assert [one["kind"] for one in found["denied"]] == ["excess"]
    assert program.code("alloc b 2m")[0] == 2
    for process in (other, forger):
        process.end()


#: A file with the name of a slice's quota, in a directory of the same file system that a container can write to.
PRETEND = """set -e
made=/run/nvc/secrets/$1
mkdir -p $made
: > $made/quota
mount --bind $made/quota $made/quota
shift
exec "$@"
"""


def test_a_file_with_the_name_of_anothers_quota(place: Place, driver: str, tool: str, sliced: Any) -> None:
    """What the process has counts for nobody: else that slice would be denied memory."""
    started(place, driver)
    sliced("1g", "--policy=first")
    key = eventually(place, lambda s: one(s)["pids"])["slices"][0]["key"]
    words = ("unshare", "--mount", "sh", "-c", PRETEND, "sh", key, tool)
    other = Program(*place.enter(*words), LD_LIBRARY_PATH=f"{driver}{LIBS}")
    for command in ("init", "primary 0", "alloc a 4g"):
        assert other.code(command)[0] == 0
    found = eventually(place, lambda s: s["found"]["stranger"] == 1 or s["found"]["excess"])
    assert found["found"]["excess"] == 0 and one(found)["truth"] < GIB
    other.end()
