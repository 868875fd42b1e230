"""nvcd with real sockets and real processes: turns, and clients that lie, stall, flood and die."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import time

import pytest
from support import PATIENCE, REPO, run
from support.nvcd import GPU, Place, ask, eventually

from nvc.daemon.audit.verify import LATES
from nvc.daemon.io.wire import (
    DROP,
    ENOUGH,
    FREE,
    GRANT,
    HELLO,
    MESSAGE,
    REFUSED,
    RELEASE,
    RUNS,
    TAIL,
    WANT,
    WELCOME,
)


def shares(place: Place, seconds: float, *drains: float) -> list[float]:
    """What the tenants have of the time they hold the first device together, all of them busy."""
    end = time.monotonic() + seconds
    for tenant, drain in zip(place.tenants, drains):
        tenant.send("busy", end, drain)
    held = [tenant.receive()["held"][0] for tenant in place.tenants[: len(drains)]]
    return [one / sum(held) for one in held]


@pytest.mark.nightly
def test_weights_and_one_that_is_idle(place: Place) -> None:
    place.start()
    for weight in (1, 2, 4):
        place.tenant("weight", weight=weight)
    place.tenant("weight", weight=8).ask("connect")
    found = shares(place, 2.5, 0, 0, 0)
    for share, weight in zip(found, (1, 2, 4)):
        assert abs(share - weight / 7) < 0.04, found


def test_alone_there_is_one_message_until_another_comes(place: Place) -> None:
    place.start()
    one, other = place.tenant(), place.tenant()
    assert one.ask("connect") == WELCOME
    one.ask("send", WANT, 0, 0, 0, 0)
    kind, round, _ = one.ask("receive")
    assert kind == FREE
    other.ask("connect")
    other.ask("send", WANT, 0, 0, 0, 0)
    assert one.ask("receive")[:2] == [DROP, round]
    one.ask("send", RELEASE, round, 0, 0, 1)
    assert other.ask("receive")[0] in (FREE, GRANT)  # the second if that came late


def test_the_death_of_a_holder_is_noticed(place: Place) -> None:
    place.start()
    one, other = place.tenant(), place.tenant()
    for tenant in (one, other):
        tenant.ask("connect")
        tenant.ask("send", WANT, 0, 0, 0, 0)
    one.kill()
    place.tenants.remove(one)
    assert other.ask("receive")[0] in (FREE, GRANT)  # the second if it was late before it was killed


def test_a_connection_in_the_hands_of_another_slice(place: Place) -> None:
    """Whoever sends by it, it is the slice's that made it, and ends with the process that did."""
    daemon = place.start()
    one, other = place.tenant(), place.tenant()
    one.ask("connect")
    other.ask("take", one.pid, one.ask("descriptor"))
    other.ask("send", WANT, 0, 0, 0, 0)
    assert other.ask("receive")[0] == FREE
    (found,) = [tenant for tenant in ask(place)["devices"][0]["tenants"] if tenant["wants"]]
    assert found["key"] == one.key
    one.kill()
    place.tenants.remove(one)
    assert other.ask("receive")[0] == 0
    assert daemon.process.poll() is None


@pytest.mark.nightly
def test_the_death_of_a_holder_whose_child_lives_on(place: Place) -> None:
    """The child has its connection, and keeps it: nobody waits until the dead one has drained."""
    place.set_device_policy(GPU.format(0), "policy weight\nquantum-us 1000000\n")
    place.start()
    one, other = place.tenant(), place.tenant()
    for tenant in (one, other):
        tenant.ask("connect")
    child = one.ask("child")
    one.ask("send", WANT, 0, 0, 0, 0)
    assert one.ask("receive")[0] == FREE
    one.kill()
    place.tenants.remove(one)
    began = time.monotonic()
    other.ask("send", WANT, 0, 0, 0, 0)
    kind = other.ask("receive")[0]
    os.kill(child, signal.SIGKILL)
    assert kind == FREE
    assert time.monotonic() - began < 0.5


def test_who_never_gives_back_loses_its_turn(place: Place) -> None:
    place.start()
    stuck, other = place.tenant(), place.tenant()
    for tenant in (stuck, other):
        tenant.ask("connect")
        tenant.ask("send", WANT, 0, 0, 0, 0)
    assert other.ask("receive")[0] in (FREE, GRANT)
    assert [stuck.ask("receive")[0] for _ in range(2)] == [FREE, DROP]


def test_who_is_late_again_and_again_is_reported(place: Place, driver: str) -> None:
    place.start(f"--root={driver}")
    late, other = place.tenant(), place.tenant()
    end = time.monotonic() + PATIENCE
    late.send("busy", end, 0.03)
    other.send("busy", end, 0)
    found = eventually(place, lambda state: any(event["key"] == late.key for event in state["events"]))
    lates = {one["key"]: one["late"] for one in found["devices"][0]["tenants"]}
    # A busy machine may keep the other one from its work again and again.
    assert {(event["kind"], event["key"]) for event in found["events"]} == {
        ("late", key) for key, count in lates.items() if count >= LATES
    }
    while place.tenants:
        place.tenants.pop().kill()


@pytest.mark.nightly
def test_a_priority_does_not_wait_for_the_end_of_a_turn(place: Place) -> None:
    """Of a second; eight times the holder's weight is one, and less is none."""
    place.set_device_policy(GPU.format(0), "policy weight\nquantum-us 1000000\n")
    place.start()
    low, other, more, most = (place.tenant("weight", weight=weight) for weight in (1, 1, 7, 8))
    for tenant in (low, other, more, most):
        tenant.ask("connect")
    low.ask("send", WANT, 0, 0, 0, 0)
    assert low.ask("receive")[0] == FREE
    other.ask("send", WANT, 0, 0, 0, 0)
    _, round, _ = low.ask("receive")
    low.ask("send", RELEASE, round, 0, 0, 0)
    kind, _, length = other.ask("receive")
    began = time.monotonic()
    assert kind == GRANT and length > 0.5e9
    more.ask("send", WANT, 0, 0, 0, 0)
    ask(place)  # it has been heard
    most.ask("send", WANT, 0, 0, 0, 0)
    kind, round, _ = other.ask("receive")
    assert kind == DROP
    assert time.monotonic() - began < 0.4
    other.ask("send", RELEASE, round, 0, 0, 0)
    assert most.ask("receive")[0] == GRANT


def test_many_connections(place: Place) -> None:
    """1,000 of one slice: so many as it may have; another slice is served meanwhile."""
    daemon = place.start()
    crowd, second, other = (place.tenant() for _ in range(3))
    welcomed, refused = crowd.ask("connections", 1000)
    assert (welcomed, refused) == (600, 400)
    # With numbers of descriptors that select(2) does not know.
    assert second.ask("connections", 600) == [600, 0]
    assert other.ask("connect") == WELCOME
    assert daemon.memory() < 60 << 20
    crowd.ask("close")
    assert crowd.ask("connect") == WELCOME


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (MESSAGE.pack(WANT, 0, 0, bytes(16), 0, 0), errno.ENODEV),
        (MESSAGE.pack(WANT, 0, 0, b"\xff" * 16, 0, 0), errno.ENODEV),
        (MESSAGE.pack(WANT, 7, 0, bytes(16), 0, 0), errno.EPROTO),
        (MESSAGE.pack(HELLO, 0, 0, bytes(16), 1, 0), errno.EPROTO),
        (MESSAGE.pack(GRANT, 0, 0, bytes(16), 1, 0), errno.EPROTO),
        (MESSAGE.pack(0xFFFF, 0, 0, bytes(16), 1, 0), errno.EPROTO),
        (MESSAGE.pack(RELEASE, 0, 0, bytes(16), 0, ENOUGH | RUNS), errno.EPROTO),
        (MESSAGE.pack(RELEASE, 0, 0, bytes(16), 0, 3_600_000_000_001 * TAIL), errno.EPROTO),
        (bytes(20), errno.EMSGSIZE),
        (bytes(41), errno.EMSGSIZE),
        (bytes(65536), errno.EMSGSIZE),
    ],
)
def test_nonsense_ends_the_connection(place: Place, message: bytes, code: int) -> None:
    place.start()
    tenant = place.tenant()
    tenant.ask("connect")
    tenant.ask("raw", message.hex())
    assert tenant.ask("receive") == [REFUSED, 0, code]
    assert tenant.ask("receive")[0] == 0
    assert tenant.ask("connect") == WELCOME


def test_a_release_of_another_round_changes_nothing(place: Place) -> None:
    place.start()
    tenant = place.tenant()
    tenant.ask("connect")
    tenant.ask("send", WANT, 0, 0, 0, 0)
    _, round, _ = tenant.ask("receive")
    for wrong in (0, round + 1, 0xFFFFFFFF):
        tenant.ask("send", RELEASE, wrong, 0, 0, 1)
    tenant.ask("send", RELEASE, round, 0, 0, 0)
    assert tenant.ask("receive")[0] == FREE


@pytest.mark.nightly
def test_a_flood_costs_its_sender(place: Place) -> None:
    daemon = place.start()
    flood = place.tenant()
    for _ in range(2):
        place.tenant()
    flood.ask("connect")
    before, waited, end = daemon.cpu(), place.waited(), time.monotonic() + 2
    flood.send("flood", end)
    for tenant in place.tenants[1:]:
        tenant.send("busy", end, 0)
    held = [tenant.receive()["held"][0] for tenant in place.tenants[1:]]
    sent = flood.receive()
    assert daemon.cpu() - before < 0.5
    assert sent < 6000
    # The flooding slice wants the device too, and has its part of it.
    assert min(held) / 1e9 > 0.2 * 2 - (place.waited() - waited)


@pytest.mark.nightly
def test_a_flood_of_connections_costs_its_sender(place: Place) -> None:
    daemon = place.start()
    for _ in range(3):
        place.tenant()
    before, waited, end = daemon.cpu(), place.waited(), time.monotonic() + 3
    place.tenants[0].send("knock", end, 2000)
    for tenant in place.tenants[1:]:
        tenant.send("busy", end, 0)
    held = [tenant.receive()["held"][0] for tenant in place.tenants[1:]]
    assert min(held) / 1e9 > 0.3 * 3 - (place.waited() - waited)
    place.tenants[0].receive()
    # A part of the time, which is longer where the sender does not get a processor.
    assert daemon.cpu() - before < 1.6 / 3 * (3 + time.monotonic() - end)


@pytest.mark.nightly
def test_a_process_with_another_root_directory(place: Place) -> None:
    """It is of its slice too, and to see that takes no look at all processes of the host."""
    daemon, tenant = place.start(), place.tenant()
    many = "for i in $(seq 400); do sleep 1000 & done; echo ready; wait"
    crowd = subprocess.Popen(["sh", "-c", many], stdout=subprocess.PIPE, start_new_session=True)
    assert crowd.stdout is not None and crowd.stdout.readline() == b"ready\n"
    before = daemon.cpu()
    assert tenant.ask("elsewhere", 200) == 200
    used = daemon.cpu() - before
    os.killpg(crowd.pid, signal.SIGKILL)
    crowd.wait()
    crowd.stdout.close()
    assert used < 0.3


def test_strangers_are_refused(place: Place) -> None:
    """A process that is in no slice, though it finds the socket."""
    place.start()
    code = (
        "import socket,sys;s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET);"
        "s.connect('/run/nvc/nvcd/tenant/socket');print(int.from_bytes(s.recv(64)[:2],'little'))"
    )
    assert run(*place.enter("/usr/bin/python3", "-c", code)).stdout.strip() == str(REFUSED)


def test_sockets_and_their_rights(place: Place) -> None:
    daemon = place.start()
    tenant, control = f"{place.run}/nvcd/tenant/socket", f"{place.run}/nvcd/nvcd.sock"
    assert stat.S_IMODE(os.stat(tenant).st_mode) == 0o666
    assert stat.S_IMODE(os.stat(control).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(tenant)).st_mode) == 0o755
    second = run(*place.enter(f"{place.stage}/bin/nvcd"), check=False)
    assert second.returncode == 1 and "another nvcd listens there" in second.stderr
    with open(f"/proc/{daemon.pid}/status", encoding="ascii") as file:
        capabilities = {line.split()[0]: int(line.split()[1], 16) for line in file if line.startswith("Cap")}
    assert capabilities["CapEff:"] & (1 << 21 | 1 << 12) == 0  # neither SYS_ADMIN nor NET_ADMIN
    assert capabilities["CapBnd:"] == capabilities["CapEff:"]


@pytest.mark.parametrize("name", ["tenant/socket", "nvcd.sock", "tenant", "", "metrics.sock"])
def test_a_link_in_the_place_of_a_socket_is_refused(place: Place, name: str) -> None:
    """Or of its directory, wherever the link leads."""
    config = os.path.join(place.scratch, "config.toml")
    with open(config, "w", encoding="ascii") as out:
        out.write('[nvcd]\nmetrics = "unix:/run/nvc/nvcd/metrics.sock"\n')
    place.start(f"--config={config}").end()
    path = f"{place.run}/nvcd/{name}".rstrip("/")
    os.rename(path, f"{path}.elsewhere")
    os.symlink(f"{os.path.basename(path)}.elsewhere", path)
    done = run(*place.enter(f"{place.stage}/bin/nvcd", f"--config={config}"), check=False)
    assert done.returncode == 1 and done.stderr.startswith("nvcd: initialization error: "), done.stderr
    assert f"/run/nvc/nvcd/{name}".rstrip("/") in done.stderr
    assert "sock" not in name or "a symbolic link" in done.stderr


@pytest.mark.nightly
def test_policies_and_quotas_change_under_running_tenants(place: Place) -> None:
    place.start()
    one, other = place.tenant("first"), place.tenant("first", weight=3)
    place.set_device_policy(GPU.format(0), "policy weight\nquantum-us 5000\n")
    one.ask("connect")  # nvcd reads it within a second: before this time at the latest when a slice is new
    place.tenant("weight").ask("connect")
    end = time.monotonic() + 2.2
    for tenant in (one, other):
        tenant.send("busy", end, 0)
    first = [tenant.receive() for tenant in (one, other)]
    assert first[1]["held"][0] / first[0]["held"][0] > 1.5
    one.set(weight=9)
    time_out = time.monotonic() + 2.2
    for tenant in (one, other):
        tenant.send("busy", time_out, 0)
    second = [tenant.receive() for tenant in (one, other)]
    assert second[0]["held"][0] / second[1]["held"][0] > 1.2


@pytest.mark.nightly
def test_gangs(place: Place) -> None:
    """Two tenants with both devices, one with the first alone."""
    place.start()
    for devices in (2, 2, 1):
        place.tenant("first", devices=devices)
    end = time.monotonic() + 2
    for tenant in place.tenants:
        tenant.send("busy", end, 0.001)
    found = [tenant.receive()["held"] for tenant in place.tenants]
    first = sum(held[0] for held in found)
    for held in found:
        assert abs(held[0] / first - 1 / 3) < 0.08, found
    assert min(held[1] for held in found[:2]) > 0.2 * 2e9, found


def test_paused_slices_have_no_turns(place: Place) -> None:
    place.start()
    one, other = place.tenant(flags=1), place.tenant()
    one.send("busy", time.monotonic() + 1, 0)
    other.ask("connect")
    other.ask("send", WANT, 0, 0, 0, 0)
    assert other.ask("receive")[0] == FREE
    assert one.receive()["turns"] == 0


def test_sockets_from_systemd(place: Place) -> None:
    """Its own program for that: nvcd is started by the first connection, and finds it waiting."""
    tenant = place.tenant()
    words = [
        "--seqpacket",
        "--fdname=tenant",
        "-l",
        "/run/nvc/nvcd/tenant/socket",
        f"{place.stage}/bin/nvcd",
    ]
    process = subprocess.Popen(
        place.enter("systemd-socket-activate", *words), stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None and "Listening" in process.stderr.readline()
    assert tenant.ask("connect") == WELCOME
    process.terminate()
    assert process.wait(timeout=PATIENCE) == 0
    process.stderr.close()


def test_the_units_are_sound(scratch: str) -> None:
    """By systemd's own judgement; the program is another one, which is there."""
    paths = []
    for name in ("nvcd.service", "nvcd.socket", "run-nvc-mps.mount", "run-nvc-bpf.mount"):
        with open(os.path.join(REPO, "packaging/systemd", name), encoding="ascii") as unit:
            text = unit.read().replace("/usr/local/bin/nvcd", "/bin/true")
        paths.append(os.path.join(scratch, name))
        with open(paths[-1], "w", encoding="ascii") as out:
            out.write(text)
    done = run("systemd-analyze", "verify", "--man=no", *paths)
    assert done.stderr == ""


def test_the_unit_takes_no_call_away() -> None:
    """That nvcd makes: these have openat2(2) answered with ENOSYS, or devices denied that they do not name."""
    with open(os.path.join(REPO, "packaging/systemd/nvcd.service"), encoding="ascii") as unit:
        names = {line.partition("=")[0] for line in unit if "=" in line and line[0] != "#"}
    assert not names & {
        "RestrictSUIDSGID",
        "DynamicUser",
        "SystemCallFilter",
        "ProtectClock",
        "PrivateDevices",
    }
