"""nvcd's live page over real sockets: who may see it, who serves it, and what it costs when nobody looks."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
from collections.abc import Iterator
from typing import Any

import pytest
from support import MIB, PATIENCE, until
from support.nvcd import SECOND, Place, ask
from support.page import Crowd, Shown, wanted


@pytest.fixture
def crowd(place: Place) -> Iterator[Any]:
    """Starts slices of one process."""
    made: list[Crowd] = []

    def start(wanted: list[dict[str, Any]]) -> Crowd:
        made.append(Crowd(place, wanted))
        return made[-1]

    yield start
    for one in made:
        one.end()


def served(daemon_pid: int) -> int:
    """The process that serves the page."""
    with open(f"/proc/{daemon_pid}/task/{daemon_pid}/children", encoding="ascii") as file:
        pids = [int(pid) for pid in file.read().split()]
    return next((pid for pid in pids if comm(pid) == "nvcd-page"), 0)


def comm(pid: int) -> str:
    """Its name, "" for one that has just ended."""
    try:
        with open(f"/proc/{pid}/comm", encoding="ascii") as file:
            return file.read().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_who_has_the_token_sees_it_and_nobody_else(place: Place) -> None:
    shown = Shown(place)
    path = f"{place.run}/nvcd/page-token"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600 and len(shown.token) >= 43
    for token in (None, "", "x", shown.token[:-1], shown.token + "x", shown.token.swapcase()):
        assert shown.get("/state", token).startswith("HTTP/1.1 401 "), token
    state = shown.state()
    assert state["node"]["host"] == os.uname().nodename and state["slices"] == {}
    page = shown.get("/")
    assert page.startswith("HTTP/1.1 200 OK") and shown.token not in page and "<script type=" in page
    assert shown.get("/page.js").startswith("HTTP/1.1 200 OK")
    for other in ("/page.css/../../etc/passwd", "/index.html", "/state/", "/%2e%2e/", "//"):
        assert shown.get(other, shown.token).startswith("HTTP/1.1 404 "), other
    told = ask(place)["page"]
    assert told == {"address": shown.address, "token": "/run/nvc/nvcd/page-token"}
    assert shown.token not in shown.daemon.said() and shown.address in shown.daemon.said()


def test_under_another_name_it_is_not_served(place: Place) -> None:
    """As a page of somebody else's would ask for it, whose name leads to this machine."""
    shown = Shown(place)
    for path in ("/", "/state"):
        assert shown.get(path, shown.token, "evil.example").startswith("HTTP/1.1 421 ")
    assert shown.get("/", None, f"localhost:{shown.port}").startswith("HTTP/1.1 200 ")


def test_who_serves_it_has_no_rights(place: Place) -> None:
    shown = Shown(place)
    pid = served(shown.daemon.pid)
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        status = dict(line.split(":\t", 1) for line in file.read().splitlines())
    assert status["Uid"].split() == status["Gid"].split() == ["65534"] * 4
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == "1"
    assert os.listdir(f"/proc/{pid}/root/") == []
    kinds = [os.readlink(f"/proc/{pid}/fd/{fd}").partition(":")[0] for fd in os.listdir(f"/proc/{pid}/fd")]
    assert kinds.count("socket") == 2  # to nvcd, and where browsers come


def test_one_that_has_ended_is_started_again(place: Place) -> None:
    shown = Shown(place)
    first = served(shown.daemon.pid)
    os.kill(first, signal.SIGKILL)
    until(lambda: served(shown.daemon.pid) not in (0, first))
    assert shown.state()["whole"] and "live page: its process has ended" in shown.daemon.said()
    second = served(shown.daemon.pid)
    shown.daemon.end()
    assert not os.path.exists(f"/proc/{second}")
    again = Shown(place)  # while it did not run, anybody could have asked an open page for its token
    assert again.token != shown.token and again.get("/state", shown.token).startswith("HTTP/1.1 401 ")


def test_slow_and_many_clients_keep_nobody_waiting(place: Place) -> None:
    place.constants["nvc.daemon.web.server.PATIENCE"] = 3.0
    shown = Shown(place)
    idle = [shown.connect() for _ in range(60)]
    try:
        for one in idle:
            one.sendall(b"GET /sta")
        viewers = [shown.connect() for _ in range(17)]
        idle += viewers
        for one in viewers:
            one.sendall(shown.request("/state", shown.token, "localhost"))
        heads = [one.recv(20) for one in viewers]
        assert heads.count(b"HTTP/1.1 200 OK\r\nCon") == 16 and heads[-1].startswith(b"HTTP/1.1 503")
        assert shown.get("/").startswith("HTTP/1.1 200 ")  # and none of them reads what comes
        half = idle[59]  # which is among the youngest
        half.settimeout(PATIENCE)
        assert half.recv(1) == b""  # it has not asked in that time
        with shown.connect() as big:
            big.settimeout(PATIENCE)
            big.sendall(b"GET /" + b"a" * 9000)
            try:
                assert big.recv(100).startswith(b"HTTP/1.1 413 ")
            except ConnectionResetError:
                pass
    finally:
        for one in idle:
            one.close()


@pytest.mark.driver(gpus=1)
def test_a_slice_and_what_becomes_of_it(place: Place, driver: str, crowd: Any) -> None:
    """In the words of `vgpu top`; also one by the name of a script, which is text as any other."""
    shown = Shown(place, f"--root={driver}")
    (one,) = wanted(driver, 1, cores=50, name="<script>alert(1)</script>")
    group = crowd([one])
    with shown.connect() as made:
        made.settimeout(PATIENCE)
        made.sendall(shown.request(f"/state?open={group.keys[0]}", shown.token, "localhost"))
        stream = made.makefile("rb")
        while stream.readline() != b"\r\n":
            pass
        name = f"{group.keys[0]}/{one['uuid']}"

        def after(condition: Any) -> Any:
            for line in stream:
                found = json.loads(line)
                if condition(found):
                    return found
            raise AssertionError("it has ended")

        found = after(lambda s: name in s["slices"])
        row = found["slices"][name]
        assert (row["name"], row["limit"], row["asked"], row["policy"]) == (one["name"], 2048 * MIB, "50%", "fixed")
        assert found["gpus"][one["uuid"]]["policy"] == "fixed"
        group.tell(["process", 0, "<b>python</b>", 64 * MIB])
        group.tell(["time", 0, 1, 0, 0])
        after(lambda s: name in s["now"])
        group.tell(["time", 0, 400_000_000, 100_000_000, 3])
        now = after(lambda s: s["now"].get(name, [0] * 6)[5] == 3)["now"][name]
        assert now[0] == "capped" and now[1] > 0 and now[2] > 0
        group.tell(["end", 0])
        assert after(lambda s: name in s["gone"])["processes"] == {}
        stream.close()


def test_nobody_who_looks_costs_nothing(place: Place, driver: str, crowd: Any) -> None:
    shown = Shown(place, f"--root={driver}")
    crowd(wanted(driver, 4))
    until(lambda: len(shown.state()["slices"]) == 4)
    pid = served(shown.daemon.pid)

    def switches() -> int:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            return sum(int(line.split()[1]) for line in file if "ctxt_switches" in line)

    def at_rest() -> bool:
        """It does not wake in the time of four looks."""
        before, since = switches(), ask(place)["now"]
        until(lambda: ask(place)["now"] - since > 4 * place.constants["nvc.daemon.web.server.TICK"] * SECOND)
        return switches() == before

    until(at_rest)


def test_whoever_takes_its_ports_does_not_keep_it_from_running(place: Place) -> None:
    """Any user can. It is told with what to do, and once they are free again, nvcd has them."""
    path = os.path.join(place.scratch, "config.toml")
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        web, metrics = (taken.getsockname()[1] for taken in (one, other))
        with open(path, "w", encoding="ascii") as out:
            out.write(f'[nvcd]\nweb = "127.0.0.1:{web}"\nmetrics = "127.0.0.1:{metrics}"\n')
        daemon = place.start(f"--config={path}")
        assert ask(place)["page"] is None
        for key, port in (("web", web), ("metrics", metrics)):
            assert f"{key}: another process has 127.0.0.1:{port}; end it" in daemon.said()
    until(lambda: ask(place)["page"] is not None)
    until(lambda: f"metrics: listens at 127.0.0.1:{metrics} now" in daemon.said())
    for port, path in ((web, "/page.js"), (metrics, "/metrics")):
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as made:
            made.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert made.recv(4096).startswith(b"HTTP/1.1 200 OK")
