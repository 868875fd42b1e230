"""Device rules of cgroup v1, written to a real hierarchy and judged by what a process in it can open."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from support.device_cgroup import CONTROL, GPU, NULL, NVIDIA, OTHER, Group, Prober, find

from nvc.apply.cgroup.find import DeviceCgroup
from nvc.base.errors import MountError


@pytest.fixture
def group() -> Iterator[Group]:
    """A group that allows what a container gets: /dev/null, and making any node."""
    with Group.make(1) as made:
        made.write("devices.deny", "a")
        for rule in ("c *:* m", "b *:* m", "c 1:3 rwm"):
            made.write("devices.allow", rule)
        yield made


def test_rules_are_added_and_taken_back(group: Group) -> None:
    before = group.read("devices.list")
    with Prober(group) as inside:
        assert inside.tries(NULL) == 0 and not inside.opens(GPU)
        change = group.prepare()
        assert group.read("devices.list") == before
        change.apply()
        change.apply()
        after = group.read("devices.list")
        assert after == sorted([*before, *(f"c {major}:{minor} rw" for major, minor in NVIDIA)])
        for device in NVIDIA:
            for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
                assert inside.opens(device, flags)
        assert not inside.opens(OTHER) and not inside.opens(GPU, kind=1)

        second = group.prepare()
        second.apply()
        second.undo()
        assert group.read("devices.list") == after

        change.undo()
        change.undo()
        assert group.read("devices.list") == before
        assert not inside.opens(GPU)
        change.apply()
        assert group.read("devices.list") == after


@pytest.mark.parametrize("listed", ["c 195:* rwm", "c *:0 rw", "c *:* rw"])
def test_wildcard_that_covers_a_node_is_enough(group: Group, listed: str) -> None:
    group.write("devices.allow", listed)
    before = group.read("devices.list")
    change = group.prepare((GPU,))
    change.apply()
    assert group.read("devices.list") == before
    change.undo()
    assert group.read("devices.list") == before


@pytest.mark.parametrize("listed", ["c 195:0 r", "c 195:0 m", "c 195:0 wm"])
def test_undo_takes_back_only_what_was_missing(group: Group, listed: str) -> None:
    group.write("devices.allow", listed)
    before = group.read("devices.list")
    with Prober(group) as inside:
        change = group.prepare((GPU,))
        change.apply()
        assert inside.opens(GPU)
        change.undo()
        assert group.read("devices.list") == before
        assert not inside.opens(GPU)


def test_wildcards_do_not_add_up(group: Group) -> None:
    """One entry to read and one to write do not let O_RDWR through."""
    group.write("devices.allow", "c 195:* r")
    group.write("devices.allow", "c *:0 w")
    with Prober(group) as inside:
        assert not inside.opens(GPU)
        group.prepare((GPU,)).apply()
        assert inside.opens(GPU)


def test_group_that_allows_by_default_may_hide_an_exception() -> None:
    with Group.make(1) as group:
        group.write("devices.deny", "c 195:0 rw")
        assert group.read("devices.list") == ["a *:* rwm"]
        with Prober(group) as inside:
            assert not inside.opens(GPU)
            change = group.prepare()
            change.apply()
            assert inside.opens(GPU) and inside.opens(OTHER)
            change.undo()
            assert inside.opens(CONTROL)


def test_denying_parent_is_named(group: Group) -> None:
    group.write("devices.allow", "c 195:255 rw")
    container = group.child("pod one").child("container")
    before = container.read("devices.list")
    with pytest.raises(MountError) as caught:
        container.prepare((CONTROL, GPU)).apply()
    text = str(caught.value)
    assert text.startswith(
        f"mount error: failed to add device rules: {group.path}/pod one: this parent denies"
    )
    assert f"write `c 195:0 rw` to {group.path}/pod one/devices.allow" in text and "--no-cgroups" in text
    assert container.read("devices.list") == before


def test_failure_in_the_middle_takes_back_what_was_done(group: Group) -> None:
    group.write("devices.allow", "c 195:* rw")
    container = group.child("container")
    container.write("devices.deny", "c 195:* rw")
    before = container.read("devices.list")
    with pytest.raises(MountError):
        container.prepare((GPU, CONTROL, (510, 0))).apply()
    assert container.read("devices.list") == before


def test_undo_of_a_group_that_is_gone_is_nothing() -> None:
    with Group.make(1) as parent:
        group = Group(1, f"{parent.path}/gone", parent.mount)
        group.write("devices.deny", "a")
        change = group.prepare()
        change.apply()
        os.rmdir(group.path)
        change.undo()
        os.close(group.directory)


def test_v1_decides_on_a_host_with_both(group: Group) -> None:
    with Group.make(2) as unified, Prober(group, unified) as inside:
        found = find(inside.pid)
        assert isinstance(found, DeviceCgroup)
        assert (found.version, found.path) == (1, group.path)
        assert os.fstat(found.directory).st_ino == os.stat(group.path).st_ino
        found.close()
