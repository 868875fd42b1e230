"""Device programs that nvc may not change or cannot: of ancestors, and those that a dump does not preserve."""

from __future__ import annotations

import os

import pytest
from support.device_cgroup import (
    CHAR,
    CONTROL,
    DOCKER,
    GPU,
    NVIDIA,
    SHAPES,
    Group,
    Prober,
    assert_docker_and_gpus,
    load,
    runc_shape,
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


def test_denying_ancestor_of_a_group_without_programs(group: Group) -> None:
    group.attach(load(SHAPES["runc"](DOCKER)), 0)
    with pytest.raises(MountError, match=f"{group.path}: device program"):
        group.child("container").prepare()


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
    with pytest.raises(
        MountError, match="cannot be extended: it uses calls.*linux.resources.devices"
    ) as caught:
        group.prepare()
    assert group.path in str(caught.value)
    assert group.attached == (before,)


def test_bundle_stands_in_for_a_program_that_cannot_be_extended(group: Group) -> None:
    get_uid = [(0x85, 0, 0, 0, 15), *runc_shape(DOCKER)]
    get_uid[0:0] = [(0xBF, 6, 1, 0, 0)]
    get_uid[2:2] = [(0xBF, 1, 6, 0, 0)]
    before = group.attach(load(get_uid), bpf.ALLOW_MULTI)
    devices = [{"allow": False, "access": "rwm"}, {"allow": True, "type": "c", "major": 10, "minor": 200}]
    with Prober(group) as inside:
        assert_docker_and_gpus(inside, False)
        change = group.prepare(NVIDIA, devices)
        change.apply()
        assert_docker_and_gpus(inside, True)
        assert inside.opens((10, 200))
        after = group.attached
        change.undo()
        assert group.attached == (before,)
        change.apply()
        group.prepare(NVIDIA, devices).apply()
        assert group.attached == after


def test_bundle_does_not_stand_in_for_one_of_several(group: Group) -> None:
    get_uid = [(0x85, 0, 0, 0, 15), (0xB7, 0, 0, 0, 0), (0x95, 0, 0, 0, 0)]
    group.attach(load(get_uid), bpf.ALLOW_MULTI)
    group.attach(load(runc_shape(DOCKER)), bpf.ALLOW_MULTI)
    with pytest.raises(MountError, match="cannot be extended"):
        group.prepare(NVIDIA, [{"allow": False, "access": "rwm"}])


def test_malformed_bundle_is_refused(group: Group) -> None:
    group.attach(load([(0x85, 0, 0, 0, 15), (0xB7, 0, 0, 0, 0), (0x95, 0, 0, 0, 0)]), bpf.ALLOW_MULTI)
    for devices in ("everything", [1], [{"allow": "yes"}], [{"access": "x"}], [{"major": 1.5}]):
        with pytest.raises(MountError, match="cannot be extended: .*linux.resources.devices"):
            group.prepare(NVIDIA, devices)
