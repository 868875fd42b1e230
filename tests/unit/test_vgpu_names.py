"""What slices are called, and which one a name means."""

from __future__ import annotations

import pytest

from nvc.base.errors import InputError
from nvc.discovery.containers import ContainerName
from nvc.model.slices.entry import Entry
from nvc.slices.show.document import document
from nvc.slices.store.status import SliceStatus, find, named

NOBODY = ContainerName()
A, B = "aaaa" + "0" * 60, "aaab" + "1" * 60


def slice_of(key: str, container: ContainerName = NOBODY, program: str = "", pid: int = 7) -> SliceStatus:
    entry = Entry(key, f"/run/{key}", 1, 1, "", "/lib", 0, (), program=program)
    return SliceStatus(entry, key.partition("-")[0], (pid,) if pid else (), (), (), container=container)


def docker(id: str, name: str) -> ContainerName:
    return ContainerName("docker", id, name)


def names(*slices: SliceStatus) -> list[str]:
    return [one.name for one in named(slices)]


def test_by_container_program_and_key() -> None:
    assert names(
        slice_of("f1-1", docker(A, "web")),
        slice_of("f2-1", ContainerName("containerd", B, "trainer", "job-0", "ml", "k8s.io")),
        slice_of("f3-1", program="python3"),
        slice_of("f4-1", ContainerName(id="d" * 64)),
        slice_of("f5-1"),
    ) == ["web", "ml/job-0/trainer", "python3", "d" * 12, "f5"]


def test_a_name_is_of_one_slice() -> None:
    """Of one that lives, before those that are gone; else each has its id."""
    gone = slice_of("f1-1", docker(A, "web"), pid=0)
    assert names(gone, slice_of("f2-1", docker(B, "web"))) == ["f1", "web"]
    both = slice_of("f1-1", docker(A, "web")), slice_of("f2-1", ContainerName("podman", B, "web"))
    assert names(*both) == [A[:12], B[:12]]
    assert names(gone, gone.replace(entry=slice_of("f3-1").entry, short="f3")) == ["f1", "f3"]


def everybody() -> tuple[SliceStatus, ...]:
    return named(
        (
            slice_of("f1-11", docker(A, "web"), pid=41),
            slice_of("f2-22", docker(B, "db"), pid=42),
            slice_of("f3-33", ContainerName("containerd", "c1", "c1", realm="lab"), pid=43),
            slice_of("f4-44", docker("c" * 64, "web"), pid=0),
        )
    )


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("web", "f1-11"), ("db", "f2-22"), (A, "f1-11"), (B[:12], "f2-22"), ("aaab", "f2-22"), ("c1", "f3-33"),
        ("lab/c1", "f3-33"), ("43", "f3-33"), ("f2", "f2-22"), ("f2-2", "f2-22"), ("cc", "f4-44"),
    ],
)  # fmt: skip
def test_which_is_meant(name: str, key: str) -> None:
    assert find(everybody(), name).entry.key == key


def test_several_that_may_be_meant() -> None:
    with pytest.raises(InputError, match=r"aaa: 2 slices are meant: web \(aaaa0{8}\), db \(aaab1{8}\)"):
        find(everybody(), "aaa")
    with pytest.raises(InputError, match="4 slices are meant"):
        find(everybody(), "f")


@pytest.mark.parametrize("name", ["", "nobody", "44", "webb", "9" * 30])
def test_nobody_is_meant(name: str) -> None:
    with pytest.raises(InputError, match="no such slice"):
        find(everybody(), name)


def test_documents() -> None:
    one, two, _, gone = (document(tenant) for tenant in everybody())
    assert one["name"] == "web" and one["state"] == "running"
    assert one["container"] == {
        "engine": "docker", "id": A, "name": "web", "pod": None, "namespace": None, "realm": None,
    }  # fmt: skip
    assert gone["state"] == "gone" and two["program"] is None
    assert document(slice_of("f5-1", program="python3"))["container"] is None
