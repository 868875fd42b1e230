"""MPS servers for isolated slices, with a program that speaks the command language of the driver's."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from support import CLEAN_ENV, GIB, PATIENCE, REPO, run
from support.damage import RECORD
from support.mps_program import compile_control
from support.nvcd import GPU, Place, ask, eventually
from support.rootfs import LIBS
from support.simrm import Served

from nvc.daemon.io.identity import parent_of
from nvc.daemon.io.loop import Loop
from nvc.daemon.mps import records as mps_records
from nvc.daemon.mps.records import MpsServer
from nvc.daemon.mps.servers import Servers
from nvc.kernel import LinuxKernel
from nvc.kernel.processes import start_of

pytestmark = pytest.mark.driver(gpus=1)


@pytest.fixture
def place(place: Place, driver: str) -> Iterator[Place]:
    place.driver = driver  # type: ignore[attr-defined]
    yield place
    if place.daemon is not None and place.daemon.process.poll() is None:
        for key in {one["key"] for one in ask(place)["mps"]}:
            ask(place, "mps-stop", key=key)


def speaking(driver: str, server: str = "") -> None:
    """Give the simulated driver a control program."""
    variables = {"MPS_SERVER": server, "LD_LIBRARY_PATH": f"{driver}{LIBS}"} if server else {}
    script = os.path.join(REPO, "tests/support/mps_control.py")
    compile_control(f"{driver}/usr/bin/nvidia-cuda-mps-control", script, **variables)


def started(place: Place, speaks: bool = True, server: str = "") -> str:
    """A daemon; the UUID of the GPU."""
    driver: str = place.driver  # type: ignore[attr-defined]
    if speaks:
        speaking(driver, server)
    place.start(f"--root={driver}")
    return GPU.format(0)


def mps_start(place: Place, key: str, uuid: str, percent: int = 25, memory: int = 4 * GIB) -> Any:
    return ask(place, "mps-start", key=key, uuid=uuid, percent=percent, memory=memory)


def test_a_slice_has_a_server_with_its_limits(place: Place) -> None:
    uuid = started(place)
    key = place.tenant().key
    first = mps_start(place, key, uuid)
    assert first["state"] == "starting" and first["place"] == "/tmp/nvidia-mps"
    eventually(place, lambda s: s["mps"][0]["state"] == "ready")
    assert mps_start(place, key, uuid)["directory"] == f"/run/nvc/mps/{key}/{uuid}/pipe"
    with open(f"{place.root}/run/nvc/mps/{key}/{uuid}/log/control.log", encoding="ascii") as log:
        assert log.read().endswith(f"] devices {uuid}\n")
    assert os.stat(f"{place.root}{first['directory']}/control").st_mode & 0o666 == 0o666
    assert ask(place, "mps-stop", key=key) == {"stopped": 1}
    assert not os.path.exists(f"{place.root}/run/nvc/mps/{key}")


def test_its_log_does_not_grow_without_end(place: Place) -> None:
    """Each question is some lines of it."""
    uuid = started(place)
    key = place.tenant().key
    mps_start(place, key, uuid)
    eventually(place, lambda s: s["mps"][0]["state"] == "ready")
    path = f"{place.root}/run/nvc/mps/{key}/{uuid}/log/control.log"
    with open(path, "a", encoding="ascii") as log:
        log.write("x" * 70000)
    eventually(place, lambda _: os.path.getsize(path) < 70000)


def test_its_server_is_no_stranger(served: Served, place: Place, tool: str) -> None:
    """On a device that slices share, where others in no slice are."""
    started(place, server=tool)
    driver: str = place.driver  # type: ignore[attr-defined]
    libraries: dict[str, str] = {**CLEAN_ENV, "LD_LIBRARY_PATH": f"{driver}{LIBS}"}
    uuid = run(
        f"{driver}/usr/bin/nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader", env=libraries
    ).stdout.strip()
    key = place.tenant(uuids=(uuid,)).key
    mps_start(place, key, uuid)
    eventually(place, lambda s: s["nvml"]["devices"] == 1 and s["mps"][0]["state"] == "ready")
    libraries = f"{place.driver}{LIBS}"  # type: ignore[attr-defined]
    with subprocess.Popen(
        [tool],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**CLEAN_ENV, "LD_LIBRARY_PATH": libraries},
    ) as other:
        assert other.stdin is not None
        other.stdin.write(b"init\nprimary 0\n")
        other.stdin.flush()
        state = eventually(place, lambda s: s["found"]["stranger"])
        assert [event["pid"] for event in state["events"]] == [other.pid]
        first = state["now"]
        state = eventually(
            place, lambda s: s["devices"][0]["used"] > 2 * 500 << 20 and s["now"] - first > 1e9
        )
        assert state["found"]["stranger"] == 1
        state = eventually(place, lambda s: other.pid in s["devices"][0]["strangers"])  # and other tests' programs
        assert place.daemon is not None
        assert {parent_of(pid) for pid in state["devices"][0]["strangers"]}.isdisjoint(place.daemon.family())


def test_it_outlives_nvcd_and_ends_with_its_slice(place: Place) -> None:
    uuid = started(place)
    tenant = place.tenant()
    mps_start(place, tenant.key, uuid)
    eventually(place, lambda s: s["mps"][0]["state"] == "ready")
    assert place.daemon is not None
    place.daemon.kill()
    place.start(f"--root={place.driver}")  # type: ignore[attr-defined]
    assert ask(place)["mps"][0]["state"] == "ready"
    tenant.kill()
    place.tenants.remove(tenant)
    eventually(place, lambda s: not s["mps"])


def test_a_record_that_cannot_be_read_denies_the_device(place: Place) -> None:
    """Which limits the server has that runs there is not known, until its slice is gone."""
    uuid = started(place)
    tenant, other = place.tenant(), place.tenant()
    mps_start(place, tenant.key, uuid)
    eventually(place, lambda s: s["mps"][0]["state"] == "ready")
    assert place.daemon is not None
    place.daemon.kill()
    path = f"/run/nvc/mps/{tenant.key}/{uuid}/about"
    with open(f"{place.root}{path}", encoding="ascii") as about:
        server = int(about.read().split()[0])
    RECORD["of another owner"](f"{place.root}{path}")
    daemon = place.start(f"--root={place.driver}")  # type: ignore[attr-defined]
    assert f"{path}: cannot be read" in daemon.said()
    for key in (tenant.key, other.key):
        answer = mps_start(place, key, uuid)
        assert answer.get("state") == "unknown" or f"{path}: cannot be read" in answer["error"], answer
        assert f"stop the container of slice {tenant.key}" in answer.get("hint", "stop the container of "
                                                                         f"slice {tenant.key}")  # fmt: skip
    os.kill(server, signal.SIGTERM)
    tenant.kill()
    place.tenants.remove(tenant)
    eventually(place, lambda s: not s["mps"])
    mps_start(place, other.key, uuid)
    eventually(place, lambda s: s["mps"][0]["state"] == "ready")


def test_no_server_runs_without_a_record(scratch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or an nvcd that is killed leaves one that the next does not know."""
    servers = Servers(Loop(), LinuxKernel(), print, str)
    with open(f"{scratch}/control", "w", encoding="ascii") as script:
        script.write(f"#!/bin/sh\necho $$ > {scratch}/ran\n")
    os.chmod(f"{scratch}/control", 0o755)
    servers.binary = f"{scratch}/control"
    started = MpsServer("1-2-3-4", GPU.format(0), 25, 0, f"{scratch}/one", 0)

    def killed(*_: object) -> None:
        raise OSError("as if it had ended here")

    with monkeypatch.context() as patch:
        patch.setattr(mps_records, "write", killed)
        with pytest.raises(OSError, match="as if"):
            servers._begin(started)
    assert os.waitpid(started.pid, 0)[0] == started.pid and not os.path.exists(f"{scratch}/ran")


def test_refused(place: Place) -> None:
    wanted: dict[str, Any] = {"key": "1-2-3-4", "uuid": started(place), "percent": 25, "memory": 0}
    for name, value, cause in (
        ("percent", 0, "want 1 to 100 %"),
        ("percent", 101, "want 1 to 100 %"),
        ("memory", 5, "want 1 to 100 %"),
        ("uuid", "MIG-00000000-1111-2222-3333-444444444440", "isolated already; leave --isolation out"),
        ("key", "../x", "`key` or `uuid` is empty or malformed"),
        ("percent", "25", "want key, uuid, percent and memory"),
    ):
        answer = ask(place, "mps-start", **wanted | {name: value})
        assert cause in f"{answer['error']}; {answer.get('hint')}"
    assert ask(place)["mps"] == []


def test_limits_that_were_not_taken(place: Place) -> None:
    """The server ends, and who asked hears why, again and again; nothing is started anew meanwhile."""
    uuid = started(place)
    key = place.tenant().key
    mps_start(place, key, uuid, memory=3 << 20)
    (one,) = eventually(place, lambda s: s["mps"][0]["state"] == "failed")["mps"]
    for _ in range(2):
        problem = mps_start(place, key, uuid, memory=3 << 20)["problem"]
        assert problem.startswith("took another limit of memory: 1G; its log ends with: [")
        assert problem.endswith(f"] devices {uuid}")
    with open(f"{place.root}/run/nvc/mps/{key}/{uuid}/about", encoding="ascii") as about:
        pid = int(about.read().split()[0])
    eventually(place, lambda _: not os.path.exists(f"/proc/{pid}"))


def test_a_program_is_run_under_its_own_server(place: Place, launcher: str) -> None:
    started(place)
    head = (launcher, f"--root={place.driver}", "vgpu", "run", "--isolation=mps")  # type: ignore[attr-defined]
    script = (
        "cd $CUDA_MPS_PIPE_DIRECTORY && test -S control || test -p control || test -e control; ls; cat; echo"
    )
    words = place.enter(*head, "--cores=25", "--memory=4g", "--", "sh", "-c", f"{script} end")
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=CLEAN_ENV
    )
    seen = eventually(place, lambda s: s["mps"] and s["mps"][0]["state"] == "ready")["mps"][0]
    assert (seen["percent"], seen["memory"]) == (25, 4 * GIB)
    done, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and "control" in done and done.endswith("end\n")
    eventually(place, lambda s: not s["mps"])


def test_a_container_sees_its_own_server(place: Place, launcher: str, runc_bundle: Any) -> None:
    started(place)
    with runc_bundle().created("runc") as container:
        head = (launcher, f"--root={place.driver}", "configure", f"--pid={container.pid}")  # type: ignore[attr-defined]
        words = ("--device=0", "--compute", "--isolation=mps", "--vgpu-cores=30", container.bundle.rootfs)
        for _ in range(2):
            run(*place.enter(*head, *words))
        (one,) = ask(place)["mps"]
        assert (one["state"], one["percent"], one["memory"]) == ("ready", 30, 0)
        seen = f"/proc/{container.pid}/root/tmp/nvidia-mps"
        assert os.path.samefile(seen, f"{place.root}/run/nvc/mps/{one['key']}/{one['uuid']}/pipe")
        assert "control" in os.listdir(seen)
        with open(f"/proc/{container.pid}/mountinfo", encoding="utf-8") as lines:
            mount = next(line for line in lines if " /tmp/nvidia-mps " in line)
        assert " rw,nosuid,nodev,noexec" in mount
        assert ask(place, "mps-stop", key=one["key"]) == {"stopped": 1}


def test_only_the_server_itself_is_ended(scratch: str) -> None:
    """Not the process that was given its number."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        start = start_of(f"/proc/{process.pid}")
        servers = Servers(Loop(), LinuxKernel(), print, str)
        for began in (start - 1, start):
            one = MpsServer("1-2-3-4", GPU.format(0), 25, 0, scratch + "/gone", 0)
            one.pid, one.start, one.state = process.pid, began, "ready"
            servers.servers["1-2-3-4", GPU.format(0)] = one
            assert process.poll() is None and servers.stop("1-2-3-4") == 1
        # 0: `stop` has reaped it already, and Popen cannot tell. Its input is open, so it does not end by itself.
        assert process.wait(timeout=PATIENCE) in (-signal.SIGTERM, 0)


def test_no_room_for_another_server(place: Place) -> None:
    """What a container has filled is said to who asks, and ends nothing."""
    uuid = started(place)
    key, other = place.tenant().key, place.tenant().key
    run(*place.enter("mount", "-t", "tmpfs", "-o", "mode=711,nr_inodes=16,size=64k", "none", "/run/nvc/mps"))
    mps_start(place, key, uuid)
    eventually(place, lambda s: s["mps"][0]["state"] == "ready")
    pipe = f"{place.run}/mps/{key}/{uuid}/pipe"
    names = [f"{pipe}/{number}" for number in range(os.statvfs(pipe).f_ffree)]
    for name in names:
        os.mkdir(name)
    for name in names[
        :5
    ]:  # nvcd makes four directories and a file; there is room for none of them, one, two ...
        answer = mps_start(place, other, uuid)
        assert "no space left on device" in answer["error"] and "see who fills it" in answer["hint"]
        eventually(place, lambda _: os.listdir(f"{place.run}/mps") == [key])
        os.rmdir(name)
    assert [one["key"] for one in ask(place)["mps"]] == [key]
    for name in names[5:]:
        os.rmdir(name)
    mps_start(place, other, uuid)
    eventually(place, lambda s: [one["state"] for one in s["mps"]] == ["ready"] * 2)


def test_a_container_fills_no_more_than_the_file_system_of_such_servers(
    place: Place, launcher: str, runc_bundle: Any
) -> None:
    """That is what the packaged unit mounts, and its directories are of that wherever they are seen."""
    with open(os.path.join(REPO, "packaging/systemd/run-nvc-mps.mount"), encoding="ascii") as unit:
        settings = dict(line.rstrip().split("=", 1) for line in unit if "=" in line)
    os.makedirs(f"{place.run}/mps")
    mount = ("mount", "-t", settings["Type"], "-o", settings["Options"], settings["What"], settings["Where"])
    run(*place.enter(*mount))
    started(place)
    with runc_bundle().created("runc") as container:
        head = (launcher, f"--root={place.driver}", "configure", f"--pid={container.pid}")  # type: ignore[attr-defined]
        run(*place.enter(*head, "--device=0", "--compute", "--isolation=mps", container.bundle.rootfs))
        seen, before = f"/proc/{container.pid}/root/tmp/nvidia-mps", os.statvfs(place.run)
        with (
            pytest.raises(OSError, match="No space left"),
            open(f"{seen}/large", "wb", buffering=0) as large,
        ):
            while large.write(bytes(1 << 20)) == 1 << 20:
                assert large.tell() < 1 << 30
            large.write(b"x")
        os.unlink(f"{seen}/large")
        with pytest.raises(OSError, match="No space left"):
            for number in range(1 << 16):
                os.mkdir(f"{seen}/{number}")
        after = os.statvfs(place.run)
        assert before.f_bavail - after.f_bavail < 1 << 8 and before.f_ffree - after.f_ffree < 1 << 8
        (one,) = ask(place)["mps"]
        assert place.daemon is not None and "file system of its own" not in place.daemon.said()
        assert ask(place, "mps-stop", key=one["key"]) == {"stopped": 1}
