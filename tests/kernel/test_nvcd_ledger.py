"""nvcd beside the simulated driver: what NVML says of slices, and what is done about it."""

from __future__ import annotations

import os
import signal
import socket
from typing import Any

import pytest
from support import GIB, MIB, PATIENCE, REPO, run, until
from support.nvcd import ANEW, Place, ask, eventually
from support.nvcd_programs import get, one, pid_of_slice, started
from support.rootfs import LIBS
from support.vgpushim import CONTEXT

from nvc.daemon.io.identity import parent_of
from nvc.daemon.io.services import CONNECTIONS
from nvc.model.slices.entry import read_entry
from nvc.slices.store.limits import read_quota

pytestmark = pytest.mark.driver(gpus=1)
#: Less than two processes have with 1 GiB, more than their contexts alone: NVML is asked each second.
TAKEN = GIB + CONTEXT


def test_books_agree(place: Place, driver: str, sliced: Any) -> None:
    started(place, driver)
    program = sliced("4g")
    assert program.code("alloc a 1g")[0] == 0
    found = eventually(place, lambda s: one(s)["truth"] is not None and one(s)["truth"] > GIB)
    # What a context takes is assumed, a little too high, where it was not measured.
    assert 0 <= one(found)["model"] - one(found)["truth"] < 64 * MIB and len(one(found)["pids"]) == 1
    assert one(found)["limit"] == 4 * GIB and found["found"]["bypass"] == 0
    assert found["watching"] == "netlink"
    program.code("free a")
    eventually(place, lambda s: one(s)["truth"] < GIB)
    assert program.code("info")[1] > 3 * GIB


def test_what_is_taken_around_the_shim_counts(place: Place, driver: str, sliced: Any, around: Any) -> None:
    """It is written into the quota, so that the slice has so much less; and it is reported."""
    started(place, driver)
    program = sliced("4g")
    free = program.code("info")[1]
    pid = one(eventually(place, lambda s: one(s)["pids"]))["pids"][0]
    other = around(pid)
    assert other.code("alloc a 1g")[0] == 0
    eventually(place, lambda s: s["found"]["bypass"] == 1 and (one(s)["truth"] or 0) > TAKEN)
    taken = free - program.code("info")[1]
    assert taken >= GIB
    assert "bypass: process" in place.daemon.said() and "; report" in place.daemon.said()  # type: ignore[union-attr]
    other.end()
    eventually(place, lambda s: len(one(s)["pids"]) == 1)
    eventually(place, lambda s: program.code("info")[1] == free)


#: What a tenant, who may write to it, can do to its ledger.
SPOILT = {
    "a pipe": "mount -t tmpfs none . && mkfifo $PWD/ledger",
    "a directory": "mount -t tmpfs none . && mkdir $PWD/ledger",
    "a link": "mount -t tmpfs none . && ln -s /etc/passwd $PWD/ledger",
    "gone": "rm ledger",
    "cut short": "truncate -s 100 ledger",
    "of other words": "echo rubbish > ledger",
}


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=pytest.mark.nightly if how.startswith("a ") else ()) for how in SPOILT]
)
def test_a_ledger_that_was_spoilt(place: Place, driver: str, sliced: Any, how: str) -> None:
    """What the slice has counts by NVML alone, all of it, and the others are verified as before."""
    started(place, driver)
    spoilt, sound = sliced("4g"), sliced("4g")
    assert spoilt.code("alloc a 1g")[0] == sound.code("alloc a 1g")[0] == 0
    found = eventually(place, lambda s: len([one for one in s["memory"] if one["pids"]]) == 2)
    programs = {parent_of(one["pids"][0]): one for one in found["memory"]}
    inside, key = programs[spoilt.process.pid]["pids"][0], programs[spoilt.process.pid]["key"]
    run("nsenter", "-t", str(inside), "-m", "sh", "-c", f"cd {driver}{LIBS}/nvc/ledger && {SPOILT[how]}")

    def books(state: Any) -> Any:
        return sorted(state["memory"], key=lambda one: one["key"] != key)

    found = eventually(place, lambda s: books(s)[0]["model"] == 0)
    wrong, right = books(found)
    assert wrong["truth"] > GIB and 0 <= right["model"] - right["truth"] < 64 * MIB
    entry = read_entry(f"{place.run}/vgpu/{wrong['key']}")
    (device,) = read_quota(entry)
    assert abs(device.correction - wrong["truth"]) < 4 * MIB and not found["denied"]
    assert sound.code("alloc b 1g")[0] == 0


def test_files_that_nobody_gets_leave_to_open(
    place: Place, driver: str, sliced: Any, around: Any, held: Any
) -> None:
    """nvcd has the slice's files open from before, and opens none of them again: each five seconds it looks."""
    started(place, driver)
    program = sliced("4g")
    free = program.code("info")[1]
    other = around(pid_of_slice(place))
    first = eventually(place, lambda s: len(one(s)["pids"]) == 2 and one(s)["model"])["now"]
    private = f"{driver}{LIBS}/nvc"
    held(pid_of_slice(place), "system", f"{private}/ledger")
    held(pid_of_slice(place), "file", f"{private}/quota")
    assert other.code("alloc a 1g")[0] == 0
    eventually(place, lambda s: one(s)["truth"] > TAKEN and s["now"] - first > ANEW)
    assert free - program.code("info")[1] >= GIB


def test_one_that_is_held_up_ends_by_the_signal_of_its_unit(
    place: Place, driver: str, sliced: Any, held: Any
) -> None:
    """Where it has to open a ledger for the first time, it waits for whoever holds that up."""
    sliced("4g")
    (key,) = os.listdir(f"{place.run}/vgpu")
    held(read_entry(f"{place.run}/vgpu/{key}").pid, "mount", f"{driver}{LIBS}/nvc/ledger")
    started(place, driver)
    daemon = place.daemon
    assert daemon is not None
    waited = [0]  # looks in a row

    def waits() -> bool:
        with open(f"/proc/{daemon.pid}/stat", encoding="utf-8") as stat:
            waited.append(waited[-1] + 1 if stat.read().rpartition(")")[2].split()[0] == "D" else 0)
        return waited[-1] > 10

    until(waits)
    with open(os.path.join(REPO, "packaging/systemd/nvcd.service"), encoding="ascii") as unit:
        settings = dict(line.rstrip().split("=", 1) for line in unit if "=" in line)
    daemon.process.send_signal(signal.Signals[settings["WatchdogSignal"]])
    assert daemon.process.wait(timeout=PATIENCE) == -signal.SIGKILL
    daemon.end()


def test_nvml_that_dies_is_asked_again_later(place: Place, driver: str, sliced: Any) -> None:
    started(place, driver)
    sliced("1g")
    eventually(place, lambda s: s["nvml"]["devices"] == 1)
    with open(f"/proc/{place.daemon.pid}/task/{place.daemon.pid}/children", encoding="ascii") as file:  # type: ignore[union-attr]
        children = file.read().split()
    for child in children:
        with open(f"/proc/{child}/status", encoding="ascii") as file:
            if "\nUid:\t65534" in file.read():
                os.kill(int(child), signal.SIGKILL)
    found = eventually(place, lambda s: s["nvml"]["failures"] == 1)
    assert "the process that asks has ended" in place.daemon.said()  # type: ignore[union-attr]
    assert found["devices"] is not None


@pytest.mark.driver(gpus=2)
def test_metrics(place: Place, driver: str, sliced: Any) -> None:
    """Of the device that the slice has: the other one is hidden from it."""
    place.forks = False  # its memory is its own
    started(place, driver, '[nvcd]\nmetrics = "unix:/run/nvc/nvcd/metrics.sock"\n')
    program = sliced("4g", "--policy=first", "--device=0")
    program.code("alloc a 1g")
    eventually(place, lambda s: s["memory"] and (s["memory"][0]["truth"] or 0) > GIB)

    text = get(place, "/metrics")
    assert text.count("\nnvc_slice_memory_limit_bytes{") == text.count("\nnvc_slice_use_ratio{") == 1
    assert text.startswith("HTTP/1.1 200 OK") and get(place, "/other").startswith("HTTP/1.1 404")
    values = {
        line.rpartition(" ")[0].partition("{")[0]: float(line.rpartition(" ")[2])
        for line in text.partition("\r\n\r\n")[2].splitlines()
        if not line.startswith("#")
    }
    assert values["hami_vgpu_memory_limit_bytes"] == values["nvc_slice_memory_limit_bytes"] == 4 * GIB
    hosts = [
        float(line.split()[-1]) for line in text.splitlines() if line.startswith("hami_host_gpu_memory_used")
    ]
    assert values["hami_vgpu_memory_used_bytes"] > GIB and len(hosts) == 2 and max(hosts) > GIB
    assert values["nvc_slice_entitlement_ratio"] == 1 and "nvc_found_total" in values
    assert place.daemon is not None and place.daemon.proportional() < 60 * MIB


def test_those_who_ask_nothing_keep_no_scraper_waiting(place: Place, driver: str) -> None:
    """Where all places are taken, who has been silent for longest is closed for one more."""
    started(place, driver, '[nvcd]\nmetrics = "unix:/run/nvc/nvcd/metrics.sock"\n')

    def connected(half: bytes = b"") -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(PATIENCE)
        made.connect(f"{place.run}/nvcd/metrics.sock")
        made.sendall(half)
        return made

    idle = [connected(b"GET /metr" if number % 2 else b"") for number in range(CONNECTIONS)]
    try:
        for _ in range(3):
            with connected(b"GET /metrics HT") as scraper:
                scraper.sendall(b"TP/1.1\r\n\r\n")
                assert scraper.recv(1 << 16).startswith(b"HTTP/1.1 200 OK")
            idle.append(connected())
        # Each scraper had the place of the first one that was left; who came after it, the scraper's own.
        assert [one.recv(1) for one in idle[:3]] == [b""] * 3
        for one in idle[3:]:
            one.setblocking(False)
            with pytest.raises(BlockingIOError):
                one.recv(1)
    finally:
        for one in idle:
            one.close()


def test_half_a_question(place: Place, driver: str) -> None:
    started(place, driver)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as half:
        half.settimeout(PATIENCE)
        half.connect(f"{place.run}/nvcd/nvcd.sock")
        half.sendall(b'{"ask": "lo')
        assert ask(place, "alive")["version"]
        half.sendall(b'ok"}\n')
        assert half.recv(100).startswith(b'{"asked"')
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as gone:
            gone.connect(f"{place.run}/nvcd/nvcd.sock")
            gone.sendall(b'{"ask": "lo')
    assert ask(place, "alive")["version"]


def test_nobody_else_may_ask(place: Place, driver: str) -> None:
    started(place, driver)
    words = "state, alive, keeper, look, trace, traced, mps-start, mps-stop, mps-share, suspend, unsuspend"
    assert ask(place, "nonsense") == {"error": f"want {words}, suspension"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.connect(f"{place.run}/nvcd/nvcd.sock")
        made.sendall(b"\xff" * 9000)
        with pytest.raises((ConnectionError, TimeoutError)):
            made.settimeout(PATIENCE)
            if made.recv(1) == b"":
                raise ConnectionError
    assert ask(place, "alive")["version"]
