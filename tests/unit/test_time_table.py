"""Which groups compute on which device, from what the tracer sees."""

from __future__ import annotations

import random

from nvc.daemon.keeper.plan import Group
from nvc.daemon.keeper.table import NO_DESCRIPTOR, UNKNOWN, Table
from nvc.kernel.objects import (
    CLIENT,
    CLIENT_FREED,
    DEVICE,
    EXITED,
    FREED,
    GROUP,
    KILLED,
    NEW,
    TIMESLICE,
    News,
    Object,
)

CHANNEL, COPY, GRAPHICS = 0xC86F, 9, 1  # an engine that copies, one that computes
C = 0xC1D00001


class Maker:
    """Makes news of objects as a process would."""

    def __init__(self) -> None:
        self.serial = 0

    def new(
        self, kind: int, handle: int, parent: int, pid: int = 7, device: int = -1, engine: int = 0, client: int = C,
        fd: int = 3,
    ) -> News:  # fmt: skip
        self.serial += 1
        made = Object(pid, client, parent, handle, kind, fd, device, self.serial, engine)
        return News(NEW, pid, client, handle, made)

    def program(self, pid: int = 7, client: int = C, instance: int = 0) -> list[News]:
        """What a CUDA program makes: a group that computes with two channels, and one that copies."""
        return [
            self.new(CLIENT, client, 0, pid, client=client),
            self.new(DEVICE, 0x10, client, pid, instance, client=client),
            self.new(GROUP, 0x20, 0x10, pid, engine=GRAPHICS, client=client),
            self.new(CHANNEL, 0x21, 0x20, pid, engine=GRAPHICS, client=client),
            self.new(CHANNEL, 0x22, 0x20, pid, engine=GRAPHICS, client=client),
            self.new(GROUP, 0x30, 0x10, pid, engine=COPY, client=client),
            self.new(CHANNEL, 0x31, 0x30, pid, engine=COPY, client=client),
        ]


def handles(table: Table, instance: int = 0) -> list[tuple[int, tuple[int, ...]]]:
    return [(group.handle, group.channels) for group in table.groups().get(instance, ())]


def test_the_group_that_computes_is_found_on_its_device() -> None:
    table, make = Table(), Maker()
    assert table.take(make.program(instance=3))
    assert table.groups() == {3: (Group(C, 0x20, 7, 3, (0x21, 0x22), 5, 0, 7),)}
    assert table.pids() == {7}
    other = Table()
    other.load(one.object for one in Maker().program(instance=3) if one.object)
    assert other.groups() == table.groups()


def test_what_does_not_say_its_engine_is_held_too() -> None:
    table, make = Table(), Maker()
    table.take(make.program())
    table.take([make.new(GROUP, 0x40, 0x10), make.new(CHANNEL, 0x41, 0x40)])
    assert (0x40, (0x41,)) in handles(table)
    table.take([make.new(CHANNEL, 0x42, 0x40, engine=COPY)])
    assert (0x40, (0x41, 0x42)) not in handles(table), "a channel of it says that it copies"
    table.take([make.new(CHANNEL, 0x43, 0x40, engine=GRAPHICS)])
    assert (0x40, (0x41, 0x42, 0x43)) in handles(table)


def test_a_channel_without_a_group_is_one_of_its_own() -> None:
    table, make = Table(), Maker()
    table.take([*make.program(), make.new(CHANNEL, 0x50, 0x10, engine=GRAPHICS)])
    assert [group for group in table.groups()[0] if group.handle == 0x50][0].fd == NO_DESCRIPTOR
    table.take([make.new(CHANNEL, 0x51, 0x10, engine=COPY)])
    assert 0x51 not in [group.handle for group in table.groups()[0]]


def test_what_hides_its_device_is_told_apart() -> None:
    table, make = Table(), Maker()
    table.take(make.program(instance=-1))
    assert list(table.groups()) == [UNKNOWN]
    table.take([make.new(GROUP, 0x60, 0x999, engine=GRAPHICS)])
    assert len(table.groups()[UNKNOWN]) == 2


def test_freed_objects_take_what_is_below_them_along() -> None:
    table, make = Table(), Maker()
    table.take(make.program())
    table.take([News(FREED, 7, C, 0x22)])
    assert handles(table) == [(0x20, (0x21,))]
    table.take([News(FREED, 7, C, 0x10)])
    assert table.groups() == {}
    table.take([*make.program(), News(CLIENT_FREED, 7, C, C)])
    assert table.groups() == {} and table.pids() == frozenset()
    table.take([*make.program(), News(FREED, 7, C, C)])
    assert table.groups() == {}


def test_a_timeslice_that_a_process_sets_is_counted() -> None:
    table, make = Table(), Maker()
    table.take(make.program())
    assert table.take([News(TIMESLICE, 7, C, 0x20)]) and table.groups()[0][0].touched == 1
    assert not table.take([News(TIMESLICE, 7, C, 0x999), News(KILLED, 7, 0, 0)])


def test_processes_that_ended_are_purged() -> None:
    table, make = Table(), Maker()
    table.take([*make.program(7), *make.program(8, C + 1)])
    assert table.take([News(EXITED, 7, 0, 0)]) and table.pids() == {8}
    assert not table.purge(lambda pid: True)
    assert table.purge(lambda pid: False) and table.groups() == {} and table.pids() == frozenset()
    assert not table.take([News(EXITED, 7, 0, 0)])


def test_a_descriptor_that_was_passed_on_keeps_the_client() -> None:
    table, make = Table(), Maker()
    table.take([*make.program(7), make.new(CHANNEL, 0x23, 0x20, 8, engine=GRAPHICS, fd=5)])
    (group,) = table.groups()[0]
    assert (group.pid, group.fd, group.opener) == (7, 3, 7) and table.pids() == {7, 8}
    table.take([News(EXITED, 7, 0, 0)])
    (group,) = table.groups()[0]
    assert (group.pid, group.fd, group.opener, group.channels) == (8, 5, 7, (0x21, 0x22, 0x23))
    assert table.pids() == {8}
    table.take([News(EXITED, 8, 0, 0)])
    assert table.groups() == {}


def below(there: dict[tuple[int, int], Object], client: int, handle: int) -> set[tuple[int, int]]:
    """The keys of an object and of all that is below it."""
    found = {(client, handle)}
    while True:
        more = {key for key, one in there.items() if key[0] == client and (client, one.parent) in found}
        if more <= found:
            return found
        found |= more


def test_news_in_any_order_give_what_the_whole_table_gives() -> None:
    """Of random lives of objects, news and the whole table agree."""
    for seed in range(12):
        chance, make, table = random.Random(seed), Maker(), Table()
        there: dict[tuple[int, int], Object] = {}

        for _ in range(150):
            client = C + chance.randrange(3)
            if (client, client) not in there:
                news = make.program(client & 0xFF, client, chance.randrange(2))
            elif chance.random() < 0.3:
                keys = [key for key in there if key[0] == client]
                _, handle = chance.choice(keys)
                news = [News(CLIENT_FREED if handle == client else FREED, 7, client, handle)]
            else:
                parents = [
                    one.handle
                    for one in there.values()
                    if one.client == client and one.kind in (DEVICE, GROUP)
                ]
                parent = chance.choice(parents or [client])
                kind = chance.choice((GROUP, CHANNEL))
                news = [
                    make.new(
                        kind,
                        0x100 + chance.randrange(40),
                        parent,
                        client & 0xFF,
                        engine=chance.choice((0, COPY, GRAPHICS)),
                        client=client,
                    )  # fmt: skip
                ]
                if (client, news[0].handle) in there:
                    continue
            table.take(news)
            for one in news:
                if one.object is not None:
                    there[(one.client, one.handle)] = one.object
                elif one.kind == CLIENT_FREED:
                    there = {key: each for key, each in there.items() if key[0] != one.client}
                else:
                    gone = below(there, one.client, one.handle)
                    there = {key: each for key, each in there.items() if key not in gone}
            whole = Table()
            whole.load(there.values())
            assert {k: set(v) for k, v in whole.groups().items()} == {
                k: set(v) for k, v in table.groups().items()
            }
