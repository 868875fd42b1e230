"""The table of objects, from programs that call a simulated driver in every way."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import PATIENCE, run
from support.clocks import apart
from support.simrm import Served, serve
from support.tracing import Caller, build_calls, changed, wait_for

from nvc.kernel import rm
from nvc.kernel.clocks import host_boottime, process_began
from nvc.kernel.objects import (
    CLIENT_FREED,
    CONTESTED,
    CROWDED,
    EXITED,
    FREED,
    FULL,
    MEDDLED,
    NAMED,
    NEW,
    TIMESLICE,
    News,
    Object,
)
from nvc.kernel.tracer import Tracer

CLIENT, DEVICE, SUBDEVICE, GROUP, CHANNEL = 0x41, 0x80, 0x2080, 0xA06C, 0xC86F


def test_when_a_process_began_in_a_time_namespace() -> None:
    """What the tracer's program reads has no offset: one day ahead, every object would be of a process before."""
    words = (sys.executable, "-c", f"from nvc.kernel.clocks import *; print(process_began({os.getpid()}))")
    ahead = run(*apart(86400, clock="boottime"), *words)
    assert ahead.stdout == f"{process_began(os.getpid())}\n"


def test_the_host_s_time_since_boot_in_a_time_namespace() -> None:
    """With it, what is known of a table is compared with when processes began."""
    words = (sys.executable, "-c", "from nvc.kernel.clocks import host_boottime; print(host_boottime())")
    before = host_boottime()
    assert before < int(run(*apart(86400, clock="boottime"), *words).stdout) < host_boottime()


def make(caller: Caller, way: str, client: int, parent: int, handle: int, kind: int, word: int = 0) -> int:
    """The handle of what it made."""
    name, status, made = caller.ask(f"alloc {way} {client} {parent} {handle} {kind} {word}")
    assert (name, status) == ("alloc", "0")
    return int(made)


def tree(caller: Caller, way: str = "plain", device: int = 1, engine: int = 1) -> tuple[int, int, int, int]:
    """A client, a device, a group and a channel."""
    client = make(caller, way, 0, 0, 0, CLIENT)
    parent = make(caller, way, client, client, 0x5C000010, DEVICE, device)
    group = make(caller, way, client, parent, 0x5C000020, GROUP, engine)
    return client, parent, group, make(caller, way, client, group, 0x5C000030, CHANNEL, engine)


def news_of(tracer: Tracer, *pids: int) -> tuple[News, ...]:
    """Other programs of this host are seen too."""
    return tuple(each for each in tracer.news() if each.pid in pids)


def objects_of(tracer: Tracer, *pids: int) -> tuple[Object, ...]:
    return tuple(each for each in tracer.objects() if each.pid in pids)


def plain(objects: tuple[Object, ...]) -> set[tuple[int, ...]]:
    return {(o.pid, o.client, o.parent, o.handle, o.kind, o.device, o.engine) for o in objects}


@pytest.mark.parametrize(("bits", "way"), [("64", "plain"), ("64", "wide"), ("32", "plain"), ("32", "wide")])
def test_what_a_program_makes_is_in_the_table(tracer: Tracer, served: Served, bits: str, way: str) -> None:
    with Caller(build_calls(bits), served.path) as caller:
        client, device, group, channel = tree(caller, way)
        table = objects_of(tracer, caller.pid)
        assert plain(table) == {
            (caller.pid, client, 0, client, CLIENT, -1, 0),
            (caller.pid, client, client, device, DEVICE, 1, 0),
            (caller.pid, client, device, group, GROUP, -1, 1),
            (caller.pid, client, group, channel, CHANNEL, -1, 1),
        }
        for each in table:
            assert os.path.samefile(f"/proc/{caller.pid}/fd/{each.fd}", f"/proc/{caller.pid}/fd/3")
        assert select.select([tracer.fd], [], [], PATIENCE)[0]
        news = news_of(tracer, caller.pid)
        assert [each.kind for each in news] == [NEW] * 4
        assert {each.object for each in news} == set(table)
        assert tracer.object(client, group) in table and tracer.object(client, 1) is None
        assert tracer.lost == 0


def test_what_is_freed_is_not(tracer: Tracer, served: Served) -> None:
    with Caller(build_calls("64"), served.path) as caller:
        client, device, group, channel = tree(caller)
        other = tree(caller)[0]
        news_of(tracer, caller.pid)
        assert caller.ask(f"free {client} {channel}") == ["free", "0"]
        assert news_of(tracer, caller.pid) == (News(FREED, caller.pid, client, channel),)
        assert {each.handle for each in objects_of(tracer, caller.pid) if each.client == client} == {
            client,
            device,
            group,
        }
        assert caller.ask(f"free {client} {client}") == ["free", "0"]
        assert news_of(tracer, caller.pid) == (News(CLIENT_FREED, caller.pid, client, client),)
        assert {each.client for each in objects_of(tracer, caller.pid)} == {other}
        assert tracer.object(client, group) is None  # its parents are gone, and so is it
        assert caller.ask(f"free {client} {client}") == ["free", str(0x23)]
        assert news_of(tracer, caller.pid) == ()
        tracer.forget(other, other)
        assert objects_of(tracer, caller.pid) == ()


def test_what_the_driver_refuses_is_not(tracer: Tracer, served: Served) -> None:
    with Caller(build_calls("64"), served.path) as caller:
        client = make(caller, "plain", 0, 0, 0, CLIENT)
        news_of(tracer, caller.pid)
        assert caller.ask(f"alloc plain {client} {client} 9 {DEVICE} 7")[1] == str(0x26)
        assert caller.ask(f"alloc plain {client} 8 9 {GROUP} 1")[1] == str(0x36)
        assert news_of(tracer, caller.pid) == () and len(objects_of(tracer, caller.pid)) == 1
    with Caller(build_calls("64")) as caller:  # /dev/null has no such call
        assert caller.ask(f"alloc plain 0 0 0 {CLIENT} 0")[1] == "255"
        assert objects_of(tracer, caller.pid) == ()


def test_what_a_process_had_is_over_with_it(tracer: Tracer, served: Served) -> None:
    with Caller(build_calls("64"), served.path) as first, Caller(build_calls("64"), served.path) as second:
        tree(first)
        kept = tree(second)[0]
    # Without a look in between: who ends first does not matter.
    assert objects_of(tracer, first.pid, second.pid) == ()
    wait_for(tracer, EXITED, second.pid)
    assert tracer.object(kept, kept) is None


def test_a_client_lives_on_with_who_was_given_it(tracer: Tracer, served: Served) -> None:
    with Caller(build_calls("64"), served.path) as caller:
        client = make(caller, "plain", 0, 0, 0, CLIENT)
        device = make(caller, "plain", client, client, 0x5C000010, DEVICE, 1)
        heir = int(caller.ask("pass")[1])
        group = make(caller, "plain", client, device, 0x5C000020, GROUP, 1)
        caller.process.wait()
        wait_for(tracer, EXITED, caller.pid)
        assert {(each.pid, each.handle) for each in objects_of(tracer, caller.pid, heir)} == {
            (caller.pid, client), (caller.pid, device), (heir, group),
        }  # fmt: skip
        caller.all()
        wait_for(tracer, EXITED, heir)
        assert tracer.object(client, client) is None and tracer.object(client, group) is None


def test_a_client_from_before_the_tracer_is_made_good(bpffs: str, served: Served) -> None:
    with Caller(build_calls("64"), served.path) as caller:
        client = make(caller, "plain", 0, 0, 0, CLIENT)
        late = Tracer.open(bpffs)
        device = make(caller, "plain", client, client, 0x5C000010, DEVICE, 0)
        found = {each.handle: each for each in objects_of(late, caller.pid)}
        assert set(found) == {client, device} and found[client].kind == CLIENT
        late.close()


def test_nobody_frees_what_another_one_has(tracer: Tracer, served: Served) -> None:
    """By another call, which looks like one of the driver's."""
    with Caller(build_calls("64"), served.path) as first, Caller(build_calls("64"), served.path) as second:
        client, _, group, _ = tree(first)
        tracer.news()
        for caller in (second, first):
            caller.tell(f"forge {client} {group}")
            assert caller.hear() == "forged 0"
        assert news_of(tracer, first.pid, second.pid) == ()
        assert len(objects_of(tracer, first.pid)) == 4


def test_what_another_process_has_is_not_replaced_while_it_lives(
    tracer: Tracer, served: Served, sim_root: Callable[..., str], simrm: str
) -> None:
    """Another driver's answers look like those of a process that changes its own."""
    with Caller(build_calls("64"), served.path) as first, serve(sim_root(gpus=2), simrm) as other:
        client, device, group, channel = tree(first)
        tracer.news()
        with Caller(build_calls("64"), other.path) as second:
            for parent, handle, kind in ((0, client, CLIENT), (client, device, DEVICE), (device, group, GROUP)):
                make(second, "plain", client, parent, handle, kind)
            assert news_of(tracer, first.pid, second.pid) == tuple(
                News(CONTESTED, second.pid, client, each) for each in (client, device, group)
            )
            assert len(objects_of(tracer, first.pid)) == 4 and not objects_of(tracer, second.pid)
            first.process.kill()
            wait_for(tracer, EXITED, first.pid)
            assert make(second, "plain", client, client, channel, DEVICE) == channel
            assert len(objects_of(tracer, second.pid)) == 2


def test_a_process_that_has_too_much_is_told_of_and_leaves_room_for_others(
    tracer: Tracer, served: Served
) -> None:
    with Caller(build_calls("64"), served.path) as crowd, Caller(build_calls("64"), served.path) as other:
        client = make(crowd, "plain", 0, 0, 0, CLIENT)
        parent = make(crowd, "plain", client, client, 0, DEVICE)
        seen = 0
        assert crowd.ask(f"many {client} {parent} 4097") == ["many", "4097"]
        while news := news_of(tracer, crowd.pid):
            seen += sum(each.times for each in news if each.kind == CROWDED)
        assert seen == 3 and not tracer.was_full
        assert len(objects_of(tracer, crowd.pid)) == 4096
        tree(other)
        assert len(objects_of(tracer, other.pid)) == 4
        tracer.forget(client, objects_of(tracer, crowd.pid)[-1].handle)
        make(crowd, "plain", client, parent, 0, SUBDEVICE)
        assert len(objects_of(tracer, crowd.pid)) == 4096


def test_timeslices_and_stops_of_others_are_told(tracer: Tracer, served: Served) -> None:
    with Caller(build_calls("64"), served.path) as caller:
        client, _, group, channel = tree(caller)
        news_of(tracer, caller.pid)
        assert caller.ask(f"timeslice {client} {group}") == ["timeslice", "0"]
        assert news_of(tracer, caller.pid) == (News(TIMESLICE, caller.pid, client, group),)
        assert caller.ask(f"timeslice {client} 9") == ["timeslice", str(0x33)]
        assert news_of(tracer, caller.pid) == ()
        ours = rm.Rm.open(served.path)
        subdevice = ours.subdevice(1)
        tracer.news()
        assert subdevice.stop([(client, channel)]) == 0
        assert [each.kind for each in news_of(tracer, os.getpid())] == [MEDDLED]
        tracer.exempt(os.getpid())
        assert subdevice.start([(client, channel)]) == 0
        fd = rm.borrow(caller.pid, 3, served.path)
        assert rm.set_timeslice(fd, client, group, 5000) == 0
        assert news_of(tracer, os.getpid(), caller.pid) == ()
        os.close(fd)
        ours.close()


def test_what_finds_no_room_is_counted(bpffs: str, tmp_path: Path, served: Served) -> None:
    small = Tracer.open(bpffs, changed(tmp_path, objects=6, ring=4096))
    with Caller(build_calls("64"), served.path) as caller:
        clients = [make(caller, "plain", 0, 0, 0, CLIENT) for _ in range(100)]
        kept = {each.client for each in objects_of(small, caller.pid)}
        news = news_of(small, caller.pid)
        assert len(kept) <= 6 and kept <= set(clients)
        full = sum(one.times for one in news if one.kind == FULL)
        assert 0 < full < 100 and small.was_full and small.lost >= 100 - len(kept) - full
    small.close()


def test_whose_channels_are_started_is_told(tracer: Tracer, served: Served) -> None:
    """Once for each client in a row; what is not there, and who is only stopped, is not told of.

    A long call names everybody: client 0.
    """
    ours = rm.Rm.open(served.path)
    with Caller(build_calls("64"), served.path) as one, Caller(build_calls("64"), served.path) as two:
        named = []
        for caller in (one, two):
            client = make(caller, "plain", 0, 0, 0, CLIENT)
            device = make(caller, "plain", client, client, 0, DEVICE)
            group = make(caller, "plain", client, device, 0, GROUP, 1)
            named.append([(client, make(caller, "plain", client, group, 0, CHANNEL, 1)) for _ in range(32)])
        gpu = ours.subdevice(0)
        tracer.news()
        first, second = named

        def told() -> list[tuple[int, int, int]]:
            return [(each.client, each.handle, each.slice) for each in tracer.news() if each.kind == NAMED]

        assert gpu.start([*first[:8], *second[:8]]) == 0
        assert told() == [(*first[0], 0), (*second[0], 0)]
        assert gpu.start([*first, *second]) == 0
        assert told() == [(0, 0, 0), (*first[0], 0)]
        assert gpu.stop(first) == 0
        assert told() == []
        assert gpu.start([(first[0][0], 1), second[-1]]) == 0x21, "in part"
        assert told() == [(*second[-1], 0)]
    ours.close()
