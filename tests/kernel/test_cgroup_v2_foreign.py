"""Device programs that nvc may not change or cannot: of ancestors, and those that a dump does not preserve."""

from __future__ import annotations

import os

import pytest
from support.device_cgroup import (
    CHAR,
    CONTROL,
    DOCKER,
    GPU,
    SHAPES,
    Group,
    Prober,
    assert_docker_and_gpus,
    load,
)

from nvc.base.errors import MountError
from nvc.kernel import bpf


def test_denying_ancestor_is_named_and_left_alone(group: Group) -> None:
    above = group.attach(load(SHAPES["systemd"](DOCKER)), bpf.ALLOW_MULTI)
    container = group.child("a b").child("container")
    own = container.attach(load(SHAPES["runc"](DOCKER)), bpf.ALLOW_MULTI)
    with pytest.raises(MountError) as caught:
        container.prepare()
    text = str(caught.value)
    assert text.startswith(f"mount error: failed to add device rules: {group.path}: device program {above} ")
    assert "denies the nodes" in text and "--no-cgroups" in text and "DeviceAllow=" in text
    assert (group.attached, container.attached) == ((above,), (own,))


def test_ancestor_that_allows_the_nodes_is_no_obstacle(group: Group) -> None:
    group.attach(load(SHAPES["systemd"]((*DOCKER, (True, CHAR, 195, -1, 7)))), bpf.ALLOW_MULTI)
    container = group.child("container")
    container.attach(load(SHAPES["runc"](DOCKER)), bpf.ALLOW_MULTI)
    with Prober(container) as inside:
        container.prepare((GPU, CONTROL)).apply()
        assert inside.opens(GPU) and inside.opens(CONTROL)


def test_ancestor_that_may_be_overridden_does_not_count(group: Group) -> None:
    group.attach(load(SHAPES["runc"]([(False, 0, -1, -1, 7)])), bpf.ALLOW_OVERRIDE)
    container = group.child("container")
    container.attach(load(SHAPES["runc"](DOCKER)), bpf.ALLOW_OVERRIDE)
    with Prober(container) as inside:
        container.prepare().apply()
        assert_docker_and_gpus(inside, True)


def test_scope_of_the_container_alone_is_its_own() -> None:
    """crun under systemd: the program is on the scope, the container in `container` below it."""
    with Group.make(2, f"nvc-test-{os.getpid()}.scope") as scope:
        before = scope.attach(load(SHAPES["crun"](DOCKER)), bpf.ALLOW_MULTI)
        container = scope.child("container")
        with Prober(container) as inside:
            assert_docker_and_gpus(inside, False)
            change = container.prepare()
            change.apply()
            assert_docker_and_gpus(inside, True)
            change.undo()
            assert scope.attached == (before,)
            change.close()


def test_scope_that_others_are_in_is_an_ancestor() -> None:
    with Group.make(2, f"nvc-test-{os.getpid()}-b.scope") as scope:
        scope.attach(load(SHAPES["crun"](DOCKER)), bpf.ALLOW_MULTI)
        container = scope.child("container")
        with Prober(scope), pytest.raises(MountError, match=scope.path):
            container.prepare()
        container.prepare().close()
        scope.child("sibling")
        with pytest.raises(MountError, match=scope.path):
            container.prepare()


def test_program_that_calls_is_refused(group: Group) -> None:
    """A helper's number is an address in a dump: such a program cannot be loaded again."""
    get_uid = [(0x85, 0, 0, 0, 15), (0xB7, 0, 0, 0, 0), (0x95, 0, 0, 0, 0)]
    before = group.attach(load(get_uid), bpf.ALLOW_MULTI)
    with pytest.raises(MountError, match="cannot be extended: it uses calls.*by CDI") as caught:
        group.prepare()
    assert group.path in str(caught.value)
    assert group.attached == (before,)
