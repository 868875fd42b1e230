"""nvcd and slices that cannot be read: they are left out, are named, and come back when they are whole again."""

from __future__ import annotations

import os

import pytest
from support.damage import ABOUT, QUOTA
from support.nvcd import Place, ask, eventually

from nvc.daemon.schedule.slice_index import SliceIndex
from nvc.kernel import LinuxKernel
from nvc.model.slices import layout, quota
from nvc.model.slices.entry import Entry, text_of
from nvc.slices.store import registry

FILES = [("about", how) for how in ABOUT] + [("quota", how) for how in QUOTA]


def test_slices_that_cannot_be_read_are_left_out(place: Place) -> None:
    """Each is named, once, and the others count."""
    sound, broken = place.tenant(), {place.tenant().key: file for file in FILES}
    kept = {}
    for key, (name, how) in broken.items():
        path = f"{place.run}/vgpu/{key}/{name}"
        with open(path, "rb") as file:
            kept[path] = file.read()
        (ABOUT if name == "about" else QUOTA)[how](path)
    place.start()
    problems = {one["key"]: one["problem"] for one in ask(place)["broken"]}
    assert set(problems) == set(broken)
    for key, (name, how) in broken.items():
        assert f"{name}: " in problems[key], how
    assert [one["key"] for one in ask(place)["slices"]] == [sound.key]
    assert [one["key"] for one in ask(place)["devices"][0]["tenants"]] == [sound.key]
    ask(place, "look")
    assert place.daemon is not None
    assert [place.daemon.said().count(f"slice {key}: ") for key in broken] == [1] * len(broken)
    for path, content in kept.items():
        if os.path.lexists(path) and (not os.path.isfile(path) or os.path.islink(path)):
            os.unlink(path)
        with open(path, "wb") as file:
            file.write(content)
        os.chown(path, 0, 0)
        os.chmod(path, 0o644)
    # Whoever is in the two whose quota was a link or a pipe sees another file than the one that was put back.
    replaced = {key for key, (name, how) in broken.items() if name == "quota" and how.startswith("a ")}
    whole = {sound.key, *broken} - replaced
    eventually(place, lambda state: {one["key"] for one in state["slices"]} >= whole)
    assert {one["key"] for one in ask(place)["broken"]} <= replaced


def test_a_quota_whose_writer_was_killed(place: Place) -> None:
    """Its slice is denied everything until somebody ends the change."""
    place.start()
    one = place.tenant("weight", weight=3)
    eventually(place, lambda state: len(state["slices"]) == 1)
    fd = os.open(f"{one.directory}/quota", os.O_RDWR)
    os.pwrite(fd, layout.SEQUENCE.pack(7), layout.SEQUENCE_OFFSET)
    ended = layout.SEQUENCE.pack(10)
    eventually(place, lambda _: os.pread(fd, layout.SEQUENCE.size, layout.SEQUENCE_OFFSET) == ended)
    assert quota.read(fd)[0].weight == 3
    os.close(fd)


def test_what_a_killed_removal_left_is_no_slice(place: Place) -> None:
    place.start()
    one = place.tenant()
    eventually(place, lambda state: len(state["slices"]) == 1)
    for name in ("quota", "about"):
        os.unlink(f"{place.root}{one.directory}/{name}")
    eventually(place, lambda state: not state["slices"])
    assert ask(place)["broken"] == []
    assert place.daemon is not None and f"slice {one.key}" not in place.daemon.said()


def test_a_slice_that_ends_while_it_is_looked_at(scratch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the list of slices and the look at each: it is no slice, and no news."""
    said: list[str] = []
    index = SliceIndex(LinuxKernel(), said.append)
    index.base = scratch
    for key in ("1-1-2-3", "2-1-2-3"):
        entry = Entry(key, f"{scratch}/{key}", 0, 0, "", "/", 0, ())
        registry.make(entry.directory, (), text_of(entry), False)
    index.refresh(0)
    assert list(index.by_key) == ["1-1-2-3", "2-1-2-3"]
    listed = registry.entry_names(scratch)
    registry.remove(f"{scratch}/2-1-2-3")
    monkeypatch.setattr(registry, "entry_names", lambda base: [*listed, "3-1-2-3"])
    index.refresh(0)
    assert (list(index.by_key), index.broken, said) == (["1-1-2-3"], {}, [])
