"""The policy `concurrent`: slices of a GPU that share one MPS server, on the simulated driver."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from support import PATIENCE, REPO, run, until
from support.mps_clients import Tenants, shared
from support.mps_program import compile_control
from support.nightly import few
from support.nvcd import GPU, SECOND, Place, ask, eventually
from support.nvcd_programs import get, started
from support.simdriver import WARN

from nvc.base.errors import DeviceError
from nvc.daemon.io.loop import Loop
from nvc.daemon.mps.records import MpsServer
from nvc.daemon.mps.servers import EXCLUSIVE_PROCESS, EXCLUSIVE_THREAD, PROHIBITED, Servers
from nvc.kernel import LinuxKernel

pytestmark = pytest.mark.driver(gpus=2)
ILLEGAL_ADDRESS, CONNECTION_FAILED, RPC_FAILURE, MAX_CLIENTS = 700, 805, 806, 808
SLICE = ("--device=0", "--policy=concurrent", "--memory=4g")


@pytest.fixture
def tenants(place: Place, launcher: str, driver: str) -> Iterator[Tenants]:
    script = os.path.join(REPO, "tests/support/mps_control.py")
    compile_control(f"{driver}/usr/bin/nvidia-cuda-mps-control", script)
    made = Tenants(place, launcher, driver)
    yield made
    made.end()
    if place.daemon is not None and place.daemon.process.poll() is None:
        ask(place, "mps-stop", key="shared")


def command(tenants: Tenants, *words: str, **more: Any) -> Any:
    place = tenants.place
    return run(*place.enter(tenants.launcher, f"--root={tenants.driver}", "vgpu", *words), check=False, **more)


def log_of(place: Place) -> str:
    directory = f"{place.run}/mps/shared"
    (uuid,) = os.listdir(directory)
    with open(f"{directory}/{uuid}/log/control.log", encoding="ascii") as log:
        return log.read()


def test_slices_share_one_server_and_a_cap_is_a_part_of_the_multiprocessors(place: Place, tenants: Tenants) -> None:
    """Caps may add up to more than 100. One program is not root's."""
    place.start(f"--root={tenants.driver}")
    whole = tenants.start(*SLICE)
    _, all_of_them = whole.do("start")
    third = tenants.start(*SLICE, "--cores=30", "--user=1234:1234")
    most = tenants.start(*SLICE, "--cores=90")
    code, few = third.do("start")
    assert (code, most.do("start")[0]) == (0, 0)
    assert int(few) == -(-int(all_of_them) * 30 // 100) < int(all_of_them)
    state = eventually(place, lambda s: shared(s).get("clients") == 3)
    assert len(state["mps"]) == 1
    said = log_of(place)
    assert f"{third.pid} of user 1234: 30 0=4096M" in said and f"{most.pid} of user 0: 90 0=4096M" in said
    assert [one.do("launch")[0] for one in tenants.all] == [0, 0, 0]


def test_a_program_cannot_give_itself_more(place: Place, tenants: Tenants) -> None:
    """Nor choose another server; fewer multiprocessors it may have."""
    place.start(f"--root={tenants.driver}")
    own = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=90G"}
    more = tenants.start(*SLICE, "--cores=20", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="80", **own)
    less = tenants.start(*SLICE, "--cores=20", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="10", **own)
    assert (more.do("start")[0], less.do("start")[0]) == (0, 0)
    said = log_of(place)
    assert f"{more.pid} of user 0: 20 0=4096M" in said and f"{less.pid} of user 0: 10 0=4096M" in said


def test_a_fault_of_one_ends_all_and_the_next_start_works(place: Place, tenants: Tenants) -> None:
    daemon = place.start(f"--root={tenants.driver}")
    good, bad = tenants.start(*SLICE), tenants.start(*SLICE)
    assert (good.do("start")[0], bad.do("start")[0]) == (0, 0)
    eventually(place, lambda s: shared(s).get("clients") == 2)
    assert bad.do("fault")[0] == ILLEGAL_ADDRESS
    state = eventually(place, lambda s: s["found"]["fault"])
    (event,) = state["events"]
    key = next(one["key"] for one in state["slices"] if one["key"].startswith(f"{namespace(bad.pid):x}-"))
    assert (event["kind"], event["pid"], event["key"]) == ("fault", bad.pid, key)
    assert "a fault has ended all its programs, with 2 clients" in daemon.said()
    assert good.do("launch")[0] in (ILLEGAL_ADDRESS, CONNECTION_FAILED, RPC_FAILURE)
    again = tenants.start(*SLICE)  # beside those that have not ended yet
    eventually(place, lambda s: shared(s)["clients"] == 0)
    assert again.do("start")[0] == 0 and again.do("launch")[0] == 0


def namespace(pid: int) -> int:
    return os.stat(f"/proc/{pid}/ns/mnt").st_ino


def test_a_server_that_was_killed(place: Place, tenants: Tenants) -> None:
    place.start(f"--root={tenants.driver}")
    one = tenants.start(*SLICE)
    assert one.do("start")[0] == 0
    eventually(place, lambda s: shared(s).get("clients") == 1)
    server = int(re.findall(r"Server +(\d+)\] New client", log_of(place))[-1])
    os.kill(server, signal.SIGKILL)
    state = eventually(place, lambda s: s["found"]["fault"])
    assert "does not say whose fault" in state["events"][0]["text"]
    assert one.do("launch")[0] == RPC_FAILURE
    assert tenants.start(*SLICE).do("start")[0] == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_control_daemon_that_ends_or_hangs(place: Place, tenants: Tenants, number: int) -> None:
    """Its directory stays, which the slices have mounted: a program of the same slice finds the next one there."""
    place.constants |= {"nvc.daemon.mps.shared.AGAIN": SECOND, "nvc.daemon.mps.shared.WEDGED": 2 * SECOND}
    daemon = place.start(f"--root={tenants.driver}")
    one = tenants.start(*SLICE)
    assert one.do("start")[0] == 0
    eventually(place, lambda s: shared(s).get("clients") == 1)
    before = control_pid(place)
    os.kill(before, number)
    eventually(place, lambda s: shared(s).get("state") == "ready" and control_pid(place) != before)
    assert "does not answer" in daemon.said() or number == signal.SIGKILL
    assert tenants.start(*SLICE).do("start")[0] == 0
    assert one.do("launch")[0] in (0, RPC_FAILURE)
    assert run("nsenter", "-t", str(one.pid), "-m", "sh", "-c", ENTER.format(one.pid)).stdout.endswith("\n0\n")


def test_a_control_daemon_that_is_slow(place: Place, tenants: Tenants) -> None:
    """It is not ended: that would end all programs."""
    daemon = place.start(f"--root={tenants.driver}")
    one = tenants.start(*SLICE)
    assert one.do("start")[0] == 0
    eventually(place, lambda s: shared(s).get("clients") == 1)
    before = control_pid(place)
    os.kill(before, signal.SIGSTOP)
    eventually(place, lambda _: "the control daemon does not answer" in daemon.said())
    os.kill(before, signal.SIGCONT)
    tenants.start(*SLICE).do("start")
    state = eventually(place, lambda s: shared(s).get("clients") == 2)
    assert control_pid(place) == before and state["found"]["fault"] == 0 and one.do("launch")[0] == 0


#: Another program of a slice: a container starts one so.
ENTER = """
echo start | /usr/bin/python3 -c "
import os, sys
environment = dict(item.split('=', 1) for item in open('/proc/{0}/environ').read().split(chr(0)) if '=' in item)
line = [word for word in open('/proc/{0}/cmdline').read().split(chr(0)) if word]
os.execvpe(line[0], line, environment)" | cut -d' ' -f1
"""


def control_pid(place: Place) -> int:
    directory = f"{place.run}/mps/shared"
    (uuid,) = os.listdir(directory)
    try:
        with open(f"{directory}/{uuid}/about", encoding="ascii") as about:
            return int(about.read().split()[0])
    except FileNotFoundError:
        return 0


def test_one_that_was_killed_with_work_leaves_the_others_alone(place: Place, tenants: Tenants) -> None:
    place.start(f"--root={tenants.driver}")
    stays = tenants.start(*SLICE)
    assert stays.do("start")[0] == 0
    for _ in range(3):
        goes = tenants.start(*SLICE)
        assert goes.do("start")[0] == 0
        goes.kill()
        assert stays.do("launch")[0] == 0
    eventually(place, lambda s: shared(s).get("clients") == 1)
    assert ask(place)["found"]["fault"] == 0


def test_a_program_whose_server_cannot_be_found_does_not_go_on_without(place: Place, tenants: Tenants) -> None:
    """The driver would, and so without its cap."""
    place.start(f"--root={tenants.driver}")
    one = tenants.start(*SLICE)
    with open(f"/proc/{one.pid}/mounts", encoding="utf-8") as mounts:
        (pipes,) = (words[1] for words in map(str.split, mounts) if words[1].endswith("/nvc/mps"))
    run("nsenter", "-t", str(one.pid), "-m", "umount", "-l", pipes)
    assert one.do("start")[0] == CONNECTION_FAILED


def test_two_threads_that_call_cuinit_at_once(place: Place, tenants: Tenants, scratch: str) -> None:
    """The second does not come to the driver before the first has said which server is the slice's."""
    library = f"{scratch}/hold.so"
    run("gcc", *WARN, "-shared", "-fPIC", "-o", library, f"{REPO}/tests/native/hold_setenv.c", "-ldl")
    place.start(f"--root={tenants.driver}")
    one = tenants.start(*SLICE, LD_PRELOAD=library)
    assert one.do("race") == (0, "0")
    assert one.do("launch")[0] != 0 and one.do("start")[0] == 0


def test_nvcd_ends_it_after_the_last_slice_and_finds_it_again_before(place: Place, tenants: Tenants) -> None:
    place.start(f"--root={tenants.driver}")
    one = tenants.start(*SLICE)
    assert one.do("start")[0] == 0
    before = control_pid(place)
    assert place.daemon is not None
    place.daemon.kill()
    place.start(f"--root={tenants.driver}")
    assert shared(ask(place))["state"] == "ready" and control_pid(place) == before
    assert one.do("launch")[0] == 0
    one.end()
    eventually(place, lambda s: not s["mps"])
    assert not os.path.exists(f"{place.run}/mps/shared")


def test_without_nvcd_no_slice_is_made(place: Place, tenants: Tenants) -> None:
    done = command(tenants, "run", *SLICE, "--", "true")
    assert done.returncode == 1 and "nvcd does not answer" in done.stderr
    assert os.listdir(f"{place.run}/vgpu") == []


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("--device=0,1",), "the slice has several"),
        (("--device=0", "--isolation=mps"), "no isolation by mps"),
    ],
)
def test_refused(place: Place, tenants: Tenants, words: tuple[str, ...], cause: str) -> None:
    place.start(f"--root={tenants.driver}")
    done = command(tenants, "run", *words, "--policy=concurrent", "--memory=4g", "--", "true")
    assert done.returncode == 1 and cause in done.stderr, done.stderr
    assert ask(place)["mps"] == []


def test_the_policy_of_a_device(place: Place, tenants: Tenants) -> None:
    """It is set before slices start; they may take turns later, and run together again."""
    place.start(f"--root={tenants.driver}")
    early = tenants.start("--device=0", "--policy=weight")
    done = command(tenants, "policy", "0", "concurrent")
    assert done.returncode == 1 and "was started without the MPS server" in done.stderr
    done = command(tenants, "set", str(early.pid), "--policy=concurrent")
    assert done.returncode == 1 and "was started without the MPS server" in done.stderr
    early.end()
    assert command(tenants, "policy", "0", "concurrent").returncode == 0
    one = tenants.start("--device=0", "--cores=40")
    assert one.do("start")[0] == 0
    shown = command(tenants, "show", str(one.pid)).stdout
    assert "concurrent" in shown and "40% of its multiprocessors" in shown
    assert command(tenants, "policy", "0", "weight").returncode == 0
    eventually(place, lambda s: s["devices"][0]["policy"] == "weight")
    assert one.do("launch")[0] == 0
    assert command(tenants, "policy", "0", "concurrent").returncode == 0
    eventually(place, lambda s: s["devices"][0]["policy"] == "concurrent")
    done = command(tenants, "set", str(one.pid), "--cores=60")
    assert done.returncode == 0 and "keep their part of the multiprocessors" in done.stderr
    assert one.do("launch")[0] == 0


def test_weights_that_change_while_programs_run(place: Place, tenants: Tenants) -> None:
    """Who has less weight pauses, which is shown, and ends with the difference."""
    started(place, tenants.driver, '[nvcd]\nmetrics = "unix:/run/nvc/nvcd/metrics.sock"\n')
    spin = os.path.join(os.path.dirname(tenants.launcher), "nvc-spin")
    names = {"heavy": 3, "light": 1}
    spinning = [
        subprocess.Popen(
            [*place.sliced(tenants.launcher, tenants.driver, *SLICE, f"--name={name}", f"--weight={weight}"),
             spin, "--seconds=600"],
            stdout=subprocess.DEVNULL,
        )
        for name, weight in names.items()
    ]  # fmt: skip
    try:
        eventually(place, lambda s: paces(s) in ([pace, 100] for pace in range(40, 90)))
        shown = json.loads(command(tenants, "top", "--once", "--format=json").stdout)
        entitled = {one["name"]: one["devices"][0]["entitlement"] for one in shown["slices"]}
        assert entitled == {"heavy": 0.75, "light": 0.25}
        assert values(place, "nvc_slice_entitlement_ratio") == [0.25, 0.75]
        until(lambda: "of the time now" in command(tenants, "show", "light").stdout)
        until(lambda: values(place, "nvc_slice_pace_ratio")[0] < values(place, "nvc_slice_pace_ratio")[1] == 1)
        command(tenants, "set", "light", "--weight=3")
        eventually(place, lambda s: paces(s) == [0, 0])
        assert "of the time now" not in command(tenants, "show", "light").stdout
    finally:
        for one in json.loads(command(tenants, "ls", "--format=json").stdout)["slices"]:
            for pid in one["pids"]:
                os.kill(pid, signal.SIGTERM)
        for process in spinning:
            process.wait(timeout=PATIENCE)


def values(place: Place, name: str) -> list[float]:
    """Those of a metric, the least first."""
    lines = [line for line in get(place, "/metrics").splitlines() if line.startswith(f"{name}{{")]
    return sorted(float(line.split()[-1]) for line in lines)


def paces(state: dict[str, Any]) -> list[int]:
    """Of all slices, in percent, the least first; 0: a slice has none."""
    return sorted(one["pacePercent"] or 0 for device in state["devices"] for one in device["together"])


@pytest.mark.parametrize(
    ("uuid", "mode", "cause"),
    [
        (GPU.format(0), PROHIBITED, "compute mode forbids it"),
        (GPU.format(0), EXCLUSIVE_THREAD, "compute mode forbids it"),
        (GPU.format(0), EXCLUSIVE_PROCESS, "slice 1-2-3-4 has its one MPS server"),
        ("MIG-00000000-1111-2222-3333-444444444440", 0, "isolated already"),
    ],
)
def test_devices_that_have_none(scratch: str, uuid: str, mode: int, cause: str) -> None:
    servers = Servers(Loop(), LinuxKernel(), print, "slice {}".format)
    servers.binary = "/bin/true"
    servers.servers["1-2-3-4", uuid] = MpsServer("1-2-3-4", uuid, 25, 0, f"{scratch}/gone", 0)
    with pytest.raises(DeviceError, match=cause):
        servers.start("shared", uuid, 100, 0, mode, 0)
    assert len(servers.servers) == 1


@pytest.mark.parametrize("driver", [{"mig": ("2x3g.40gb",)}], indirect=True)
def test_a_mig_device(place: Place, tenants: Tenants) -> None:
    place.start(f"--root={tenants.driver}")
    for words in (("run", "--device=0:0", *SLICE[1:], "--", "true"), ("policy", "0:0", "concurrent")):
        done = command(tenants, *words)
        assert done.returncode == 1 and "MIG device" in done.stderr, done.stderr


@pytest.mark.parametrize("kind", few(["own namespaces", "the host's processes", "own users"], 3))
def test_a_container(
    place: Place, tenants: Tenants, stage: str, runc_bundle: Any, debian: str, kind: str
) -> None:
    """It is a client, whatever namespaces it has, with a /dev/shm of its own."""
    place.start(f"--root={tenants.driver}")
    shutil.copy(f"{stage}/bin/nvc-spin", f"{debian}/usr/bin")
    bundle = runc_bundle(debian)
    namespaces = bundle.config["linux"]["namespaces"]
    if kind == "the host's processes":
        bundle.config["linux"]["namespaces"] = [one for one in namespaces if one["type"] != "pid"]
    if kind == "own users":
        bundle.user_namespace()
    limits = ("--vgpu-policy=concurrent", "--vgpu-memory=4g", "--vgpu-cores=30")
    words = ("--device=0", "--compute", "--utility", *limits)
    with bundle.created("runc") as container:
        container.start()
        head = (tenants.launcher, f"--root={tenants.driver}", "configure", f"--pid={container.pid}")
        run(*place.enter(*head, *words, bundle.rootfs))
        assert "1.00 of 4.00 GiB taken" in container.exec("nvc-spin --memory 1GiB --seconds 0.2").stdout
        user = 100000 if kind == "own users" else 0
        assert f"of user {user}: 30 0=4096M" in log_of(place)
