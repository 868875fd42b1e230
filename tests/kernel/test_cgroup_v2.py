"""Device programs of cgroup v2, attached to real groups and judged by what a process in them can open."""

from __future__ import annotations

import errno
import os

import pytest
from support.device_cgroup import (
    CHAR,
    CONTROL,
    DOCKER,
    GPU,
    NULL,
    OTHER,
    READ,
    SHAPES,
    WRITE,
    Group,
    ModelRule,
    Prober,
    assert_docker_and_gpus,
    load,
    runc_shape,
)

from nvc.base.errors import MountError
from nvc.kernel import bpf

KINDS = {"alone": 0, "override": bpf.ALLOW_OVERRIDE, "multi": bpf.ALLOW_MULTI, "link": -1}


def attach(group: Group, kind: str, program: int) -> int:
    return group.attach_link(program) if kind == "link" else group.attach(program, KINDS[kind])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_denying_program_is_extended(group: Group, kind: str, shape: str) -> None:
    before = attach(group, kind, load(SHAPES[shape](DOCKER)))
    with Prober(group) as inside:
        assert_docker_and_gpus(inside, False)
        change = group.prepare()
        assert group.attached == (before,)
        change.apply()
        assert_docker_and_gpus(inside, True)
        after = group.attached
        assert len(after) == 1 and after != (before,)
        assert bpf.attached(group.directory)[1] == (bpf.ALLOW_MULTI if kind == "link" else KINDS[kind])

        change.apply()
        second = group.prepare()
        second.apply()
        assert group.attached == after
        second.undo()
        assert group.attached == after

        change.undo()
        change.undo()
        assert group.attached == (before,)
        assert_docker_and_gpus(inside, False)
        change.apply()
        assert group.attached == after
        assert_docker_and_gpus(inside, True)
        change.close()
        second.close()
        assert_docker_and_gpus(inside, True)


def test_mknod_is_never_granted(group: Group) -> None:
    group.attach(load(runc_shape([(True, CHAR, 1, 3, 7)])), bpf.ALLOW_MULTI)
    with Prober(group) as inside:
        group.prepare().apply()
        assert inside.opens(GPU)
        assert not inside.makes(GPU)
        assert inside.makes(NULL)


def test_no_program_is_nothing_to_do(group: Group) -> None:
    change = group.prepare()
    change.apply()
    assert group.attached == ()
    change.undo()
    assert group.attached == ()


def test_allowing_program_is_left_alone(group: Group) -> None:
    rules: list[list[ModelRule]] = [[(True, 0, -1, -1, 7)], [(True, CHAR, -1, -1, READ | WRITE)]]
    ids = [group.attach(load(runc_shape(rules[0])), bpf.ALLOW_MULTI)]
    ids += [group.attach(load(shape(rules[1])), bpf.ALLOW_MULTI) for shape in SHAPES.values()]
    group.prepare().apply()
    assert sorted(group.attached) == sorted(ids)


def test_program_that_allows_only_reading_is_extended(group: Group) -> None:
    rules: list[ModelRule] = [(True, CHAR, 195, -1, READ), (True, CHAR, 195, -1, WRITE)]
    group.attach(load(runc_shape(rules)), bpf.ALLOW_MULTI)
    with Prober(group) as inside:
        assert inside.opens(GPU, os.O_RDONLY) and not inside.opens(GPU)
        group.prepare((GPU,)).apply()
        assert inside.opens(GPU)
        assert not inside.opens(CONTROL) and inside.opens(CONTROL, os.O_WRONLY)


def test_each_of_several_programs_is_extended(group: Group) -> None:
    direct = group.attach(load(SHAPES["runc"](DOCKER)), bpf.ALLOW_MULTI)
    linked = group.attach_link(load(SHAPES["systemd"](DOCKER)))
    harmless = group.attach(load(SHAPES["crun"]([(True, 0, -1, -1, 7)])), bpf.ALLOW_MULTI)
    with Prober(group) as inside:
        change = group.prepare()
        change.apply()
        assert_docker_and_gpus(inside, True)
        assert harmless in group.attached
        assert not {direct, linked} & set(group.attached)
        assert len(group.attached) == 3
        change.undo()
        assert set(group.attached) == {direct, linked, harmless}


def test_failure_in_the_middle_takes_back_what_was_done(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [group.attach(load(SHAPES[name](DOCKER)), bpf.ALLOW_MULTI) for name in SHAPES]
    real = bpf.replace
    calls = 0

    def replace(cgroup: int, program: int, old: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
        real(cgroup, program, old)

    change = group.prepare()
    monkeypatch.setattr(bpf, "replace", replace)
    with pytest.raises(MountError, match="failed to add device rules: .*argument list too long"):
        change.apply()
    assert sorted(group.attached) == sorted(before)
    monkeypatch.undo()
    change.close()
    assert_unchanged_and_usable(group)


def assert_unchanged_and_usable(group: Group) -> None:
    with Prober(group) as inside:
        assert_docker_and_gpus(inside, False)
        group.prepare().apply()
        assert_docker_and_gpus(inside, True)


@pytest.mark.parametrize("kind", KINDS)
def test_engine_changes_the_program_before_apply(group: Group, kind: str) -> None:
    """What `prepare` saw is gone: the program that is there by then is extended instead."""
    program = load(SHAPES["runc"](DOCKER))
    attach(group, kind, program)
    change = group.prepare()
    wider = (*DOCKER, (True, CHAR, *OTHER, 7))
    new = load(SHAPES["crun"](wider))
    if kind == "link":
        [link] = group.links
        bpf.update_link(link, new, program)
    elif kind == "multi":
        bpf.replace(group.directory, new, program)
    else:
        bpf.attach(group.directory, new, KINDS[kind])
    with Prober(group) as inside:
        change.apply()
        assert inside.opens(GPU) and inside.opens(OTHER)
        assert len(group.attached) == 1
        change.undo()
        assert group.attached == (bpf.identify_program(new).id,)


def test_undo_leaves_the_program_that_an_engine_attached_since(group: Group) -> None:
    for kind in ("alone", "multi"):
        with Group.make(2) as other:
            other.attach(load(SHAPES["runc"](DOCKER)), KINDS[kind])
            change = other.prepare()
            change.apply()
            ours = bpf.open_program(other.attached[0])
            newest = load(SHAPES["crun"](DOCKER))
            if kind == "multi":
                bpf.replace(other.directory, newest, ours)
            else:
                bpf.attach(other.directory, newest, KINDS[kind])
            os.close(ours)
            change.undo()
            assert other.attached == (bpf.identify_program(newest).id,)


@pytest.mark.parametrize("kind", ["alone", "override", "multi", "link"])
def test_there_is_no_moment_without_a_program(group: Group, kind: str) -> None:
    """Devices are opened all the time while programs are exchanged: nothing more is let in, nothing less."""
    attach(group, kind, load(SHAPES["runc"](DOCKER)))
    with Prober(group) as inside:
        inside.watch(NULL, OTHER)
        for _ in range(30):
            change = group.prepare()
            change.apply()
            change.undo()
            change.close()
        rounds, refused, slipped = inside.outcome()
        assert rounds > 100
        assert (refused, slipped) == (0, 0)


def test_many_nodes_and_a_long_program(group: Group) -> None:
    many: list[ModelRule] = [(True, CHAR, 240, minor, 7) for minor in range(0, 3000, 2)]
    rules = tuple((508, minor) for minor in range(500)) + tuple((509, minor) for minor in range(0, 400, 3))
    group.attach(load(SHAPES["crun"](many)), bpf.ALLOW_MULTI)
    with Prober(group) as inside:
        group.prepare(rules).apply()
        for device in ((508, 0), (508, 499), (509, 0), (509, 399), (240, 0), (240, 2998)):
            assert inside.opens(device)
        for device in ((508, 500), (509, 1), (509, 401), (240, 1), (510, 0), (507, 0)):
            assert not inside.opens(device)


@pytest.mark.parametrize("kind", KINDS)
def test_no_descriptor_is_left_open(group: Group, kind: str) -> None:
    attach(group, kind, load(SHAPES["runc"](DOCKER)))
    before = os.listdir("/proc/self/fd")
    change = group.prepare()
    change.apply()
    group.prepare().close()
    change.undo()
    change.apply()
    change.close()
    change.close()
    assert os.listdir("/proc/self/fd") == before
