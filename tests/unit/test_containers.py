"""Names of containers from the files of their engines: known layouts, and files that are torn or hostile."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from nvc.discovery.containers import ContainerName
from nvc.discovery.containers.cgroup import ids_in
from nvc.discovery.containers.files import FILE_MAX
from nvc.discovery.containers.lookup import Lookup, Trace
from nvc.discovery.containers.places import Places, places

ID = "4f1c" + "0123456789ab" * 5
POD = {
    "io.kubernetes.cri.container-name": "trainer",
    "io.kubernetes.cri.sandbox-name": "job-0",
    "io.kubernetes.cri.sandbox-namespace": "ml",
}
CRIO = {
    "io.kubernetes.container.name": "trainer",
    "io.kubernetes.pod.name": "job-0",
    "io.kubernetes.pod.namespace": "ml",
}


def put(path: str, value: Any) -> str:
    """Make a file of JSON, or of bytes as they are."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as out:
        out.write(value if isinstance(value, bytes) else json.dumps(value).encode())
    return path


class Engines:
    """Directories in which engines would keep their state."""

    def __init__(self, directory: str) -> None:
        self.docker, self.storage, self.tasks = (
            f"{directory}/{name}" for name in ("docker", "storage", "run")
        )

    @property
    def lookup(self) -> Lookup:
        return Lookup(Places((self.docker,), (self.storage,), (self.tasks,)))

    def bundle(self, realm: str, id: str, config: Any) -> str:
        """A bundle of containerd's."""
        directory = f"{self.tasks}/io.containerd.runtime.v2.task/{realm}/{id}"
        put(f"{directory}/config.json", config)
        return directory

    def stored(self, id: str, config: Any, names: Any) -> str:
        """A bundle of Podman's or CRI-O's."""
        directory = f"{self.storage}/overlay-containers"
        put(f"{directory}/containers.json", names)
        put(f"{directory}/{id}/userdata/config.json", config)
        return f"{directory}/{id}/userdata"


@pytest.fixture
def engines(scratch: str) -> Engines:
    return Engines(scratch)


def test_docker(engines: Engines, scratch: str) -> None:
    elsewhere = f"{scratch}/elsewhere/containers/{ID}"  # of a dockerd that was started with --data-root
    put(f"{elsewhere}/config.v2.json", {"ID": ID, "Name": "/web"})
    mount = {"destination": "/etc/resolv.conf", "source": f"{elsewhere}/resolv.conf"}
    bundle = engines.bundle("moby", ID, {"mounts": [mount]})
    name = engines.lookup.of(Trace(ID, bundle))
    assert name == ContainerName("docker", ID, "web") and name.label == "web"
    assert engines.lookup.of(Trace(ID)).name == "web", "the bundle is found by the id"
    assert engines.lookup.of(Trace(cgroup=f"/system.slice/docker-{ID}.scope")).name == "web"


def test_docker_for_kubernetes(engines: Engines) -> None:
    known = {"Name": "/k8s_trainer_job-0_ml_1_0", "Config": {"Labels": CRIO}}
    put(f"{engines.docker}/containers/{ID}/config.v2.json", known)
    name = engines.lookup.of(Trace(ID))
    assert (name.engine, name.label) == ("docker", "ml/job-0/trainer")


def test_crio(engines: Engines) -> None:
    bundle = engines.stored(ID, {"annotations": CRIO}, [{"id": ID, "names": ["k8s_trainer_job-0_ml_1_0"]}])
    for trace in (Trace(ID, bundle), Trace(ID), Trace(cgroup=f"/kubepods.slice/crio-{ID}.scope")):
        assert engines.lookup.of(trace) == ContainerName("cri-o", ID, "trainer", "job-0", "ml")


def test_containerd(engines: Engines) -> None:
    kubernetes = engines.bundle("k8s.io", ID, {"annotations": POD})
    name = engines.lookup.of(Trace(ID, kubernetes))
    assert name == ContainerName("containerd", ID, "trainer", "job-0", "ml", "k8s.io")
    assert {"trainer", "job-0", "job-0/trainer", "ml/job-0/trainer", ID} == set(name.aliases)
    chosen = engines.bundle("default", "c1", {"annotations": {}})
    name = engines.lookup.of(Trace("c1", chosen))
    assert (name.label, name.realm) == ("c1", "default") and "default/c1" in name.aliases
    nerdctl = engines.bundle("default", ID, {"annotations": {"nerdctl/name": "web"}})
    assert engines.lookup.of(Trace(ID, nerdctl)).label == "web"


def test_ids_of_names(engines: Engines) -> None:
    """The other way round, for who names a container."""
    put(f"{engines.docker}/containers/{ID}/config.v2.json", {"Name": "/web"})
    engines.bundle("k8s.io", "b" * 64, {"annotations": POD})
    engines.stored("c" * 64, {"annotations": CRIO}, [])
    engines.stored("d" * 64, {}, [{"id": "d" * 64, "names": ["train"]}])
    assert engines.lookup.ids_of("web")[0] == [ID] and engines.lookup.ids_of("train")[0] == ["d" * 64]
    assert engines.lookup.ids_of("ml/job-0/trainer")[0] == ["b" * 64, "c" * 64]
    # The sandbox of the pod, in containerd and in CRI-O, whatever its id.
    engines.bundle("k8s.io", "a" * 64, {"annotations": {k: v for k, v in POD.items() if "container" not in k}})
    pause = {**CRIO, "io.kubernetes.container.name": "POD"}
    engines.stored("0" * 64, {"annotations": pause}, [])
    assert engines.lookup.ids_of("job-0")[0][:2] == ["b" * 64, "c" * 64]
    assert sorted(engines.lookup.ids_of("job-0")[0][2:]) == ["0" * 64, "a" * 64]
    assert engines.lookup.ids_of("nobody")[0] == engines.lookup.ids_of("")[0] == []


def test_of_no_engine(engines: Engines) -> None:
    """A plain id is shown as it is; a long one as engines shorten it; a group that is no id is none."""
    assert engines.lookup.of(Trace("job", "/srv/bundle")).label == "job"
    assert engines.lookup.of(Trace(ID)).label == ID[:12]
    assert engines.lookup.of(Trace(cgroup=f"/kubepods/pod1/{ID}")).label == ID[:12]
    assert engines.lookup.of(Trace(cgroup="/user.slice/session-1.scope")).label == ""


@pytest.mark.parametrize(
    ("path", "first"),
    [
        (f"/docker/{ID}", ID),
        (f"/system.slice/docker-{ID}.scope", ID),
        (f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope", ID),
        (f"kubepods-pod1.slice:cri-containerd:{ID}", ID),
        (f"/machine.slice/libpod-{ID}.scope/container", ID),
        (f"/docker/{ID}/nested", "nested"),  # its own id, not that of the container around it
        ("/default/c1", "c1"),
    ],
)
def test_ids_of_cgroups(path: str, first: str) -> None:
    assert ids_in(path)[0] == first


HOSTILE = [
    b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"Name": 7}', b'{"Name": ["/x"]}', b'{"Name": ""}',
    b'{"Config": 3}', b'{"annotations": []}', b'[{"id": 1, "names": ["x"]}]', b'[{"id": "%s"}]' % ID.encode(),
    b'[{"id": "%s", "names": "x"}]' % ID.encode(), b'[{"id": "%s", "names": [[]]}]' % ID.encode(),
    b"[7]", b'[{"id": [], "names": ["x"]}]', b"[" * 100_000, b'{"mounts": {"source": 1}}',
    b'{"mounts": [1, {"source": "x"}, {"source": 2}]}',
]  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_torn_and_hostile_files(engines: Engines, data: bytes) -> None:
    """Whatever they hold: the plain id."""
    put(f"{engines.docker}/containers/{ID}/config.v2.json", data)
    for bundle in (engines.bundle("moby", ID, data), engines.stored(ID, data, data), ""):
        name = engines.lookup.of(Trace(ID, bundle))
        assert (name.name, name.label) == ("", ID[:12])
    assert engines.lookup.ids_of("x")[0] == []


@pytest.mark.parametrize("kind", ["link", "fifo", "directory", "too large"])
def test_other_than_files(engines: Engines, scratch: str, kind: str) -> None:
    """No link is followed, nothing is waited for, and no more is read than a file may have."""
    path = f"{engines.docker}/containers/{ID}/config.v2.json"
    os.makedirs(os.path.dirname(path))
    sound = put(f"{scratch}/sound.json", {"Name": "/web"})
    if kind == "link":
        os.symlink(sound, path)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        os.mkdir(path)
    else:
        with open(put(path, {"Name": "/web"}), "r+b") as file:
            file.truncate(FILE_MAX + 1)
    assert engines.lookup.of(Trace(ID)).label == ID[:12]


def test_control_characters(engines: Engines) -> None:
    name = "/\x1b]0;x\x07a\u202eb\nc" + "d" * 10_000
    put(f"{engines.docker}/containers/{ID}/config.v2.json", {"Name": name})
    found = engines.lookup.of(Trace(ID)).name
    assert found.startswith("?]0;x?a?b?cd") and found.isprintable() and len(found) < 300


@pytest.mark.parametrize("id", ["..", "../../etc", "a/b", ".", "\0", "x" * 300, "\x1b[2J"])
def test_ids_that_are_no_names_of_files(engines: Engines, id: str) -> None:
    put(f"{engines.docker}/config.v2.json", {"Name": "/web"})
    assert engines.lookup.of(Trace(id)).name == ""
    assert engines.lookup.of(Trace(id)).label.isprintable()


def test_directories_that_are_configured(scratch: str) -> None:
    assert places(scratch) == Places()
    put(f"{scratch}/docker/daemon.json", {"data-root": "/data/docker/", "exec-root": "/run/d"})
    put(
        f"{scratch}/containers/storage.conf",
        b'[storage]\n# graphroot = "/no"\n  graphroot = "/data/storage"\n',
    )
    put(f"{scratch}/containerd/config.toml", b"version = 2\nstate = '/run/c'\n")
    found = places(scratch)
    assert found.docker == ("/data/docker", "/var/lib/docker")
    assert found.storage[0] == "/data/storage" and "/var/lib/containers/storage" in found.storage
    assert found.tasks[:2] == ("/run/c", "/run/d/containerd/daemon")
    put(f"{scratch}/docker/daemon.json", {"data-root": 7, "exec-root": "relative"})
    assert places(scratch).docker == ("/var/lib/docker",)
