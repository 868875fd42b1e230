"""How somebody is told to end what runs, before its record is removed."""

from __future__ import annotations

import pytest

from nvc.base.errors import InputError
from nvc.discovery.containers import ContainerName
from nvc.model.slices.entry import Entry
from nvc.slices.admin.removal import check_ended
from nvc.slices.store.liveness import Life

ID = "0123456789abcdef" * 4
ENTRY = Entry("f-1-2-3", "/nowhere", 42, 0, "", "/", 0, ())


@pytest.mark.parametrize(
    ("container", "command"),
    [
        (ContainerName(), "kill 42"),
        (ContainerName("docker", ID, "web"), "docker kill web"),
        (ContainerName("podman", ID), "podman kill 0123456789ab"),
        (ContainerName("containerd", "c1", realm="lab"), "ctr -n lab tasks kill c1"),
        (ContainerName("containerd", ID, "main", "job-0", "ml", "k8s.io"), "kubectl delete pod -n ml job-0"),
        (ContainerName("cri-o", ID), "kill 42"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_who_runs(container: ContainerName, command: str, force: bool) -> None:
    with pytest.raises(InputError) as told:
        check_ended("web", ENTRY, container, Life((7, 42)), force)
    assert (told.value.cause, told.value.hint) == ("runs: process 42 and 1 more", f"end it first: `{command}`")


def test_who_may_run() -> None:
    doubt = Life((), "/proc: permission denied")
    with pytest.raises(InputError, match="may run: /proc: permission denied"):
        check_ended("web", ENTRY, ContainerName(), doubt, False)
    check_ended("web", ENTRY, ContainerName(), doubt, True)
    check_ended("web", ENTRY, ContainerName(), None, False)
