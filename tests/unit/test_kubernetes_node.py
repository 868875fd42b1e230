"""The installer of Kubernetes nodes: versions come and go by renames, and what is in use stays."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest
from support import CLEAN_ENV, REPO, run

SCRIPT = os.path.join(REPO, "packaging/kubernetes/node.py")


class Node:
    """A node's directories, and images with versions of nvc."""

    def __init__(self, directory: str) -> None:
        self.host = os.path.join(directory, "host")
        self.images = os.path.join(directory, "image/opt/nvc")
        for name in ("run/cdi", "etc/cdi", "run/nvc/vgpu", "var/lib/nvc/kubernetes/claims"):
            os.makedirs(os.path.join(self.host, name))

    def path(self, *names: str) -> str:
        return os.path.join(self.host, *names)

    def install(self, version: str) -> str:
        """What the image of a version says when it installs itself."""
        place = os.path.join(self.images, version, "lib/nvc")
        os.makedirs(place, exist_ok=True)
        with open(SCRIPT, encoding="utf-8") as source, open(f"{place}/node", "w", encoding="utf-8") as out:
            out.write(source.read())
        return run(sys.executable, "-I", f"{place}/node", "install", "--host", self.host).stdout

    def uninstall(self) -> tuple[int, str]:
        done = run(sys.executable, "-I", SCRIPT, "uninstall", "--once", "--host", self.host, check=False)
        return done.returncode, done.stdout + done.stderr

    def specification(self, name: str, kind: str, version: str = "1") -> str:
        """A CDI file that names the programs of a version; its path."""
        path = self.path("run/cdi", name)
        hook = {"hookName": "createContainer", "path": f"/opt/nvc/{version}/bin/nvc-cdi-hook"}
        with open(path, "w", encoding="utf-8") as out:
            json.dump({"cdiVersion": "0.5.0", "kind": kind, "containerEdits": {"hooks": [hook]}}, out)
        return path

    @property
    def versions(self) -> list[str]:
        return sorted(set(os.listdir(self.path("opt/nvc"))) - {".lock"})


@pytest.fixture
def node(scratch: str) -> Node:
    return Node(scratch)


def test_an_unused_version_goes_with_the_next(node: Node) -> None:
    node.install("1")
    node.install("2")
    assert node.versions == ["2", "current"] and os.readlink(node.path("opt/nvc/current")) == "2"


def test_a_version_that_a_file_names_stays(node: Node) -> None:
    """Its container may start again. When the file has gone, so does the version."""
    node.install("1")
    path = node.specification("claim.json", "k8s.gpu.nvc.dev/claim")
    node.install("2")
    assert node.versions == ["1", "2", "current"]
    os.unlink(path)
    node.install("2")
    assert node.versions == ["2", "current"]


def test_a_plugin_runs_while_the_next_version_comes(node: Node) -> None:
    """The state directory has the socket of its worker, which cannot be read."""
    node.install("1")
    with socket.socket(socket.AF_UNIX) as worker:
        worker.bind(node.path("var/lib/nvc/kubernetes/worker.sock"))
        node.install("2")
    assert node.versions == ["2", "current"]


def test_what_a_killed_installer_left_is_replaced(node: Node) -> None:
    os.makedirs(node.path("opt/nvc/2.new/lib"))
    os.symlink("nowhere", node.path("opt/nvc/current.new"))
    node.install("2")
    assert node.versions == ["2", "current"]
    assert os.path.isfile(node.path("opt/nvc/2/lib/nvc/node"))


def test_a_version_that_is_there_is_not_written_again(node: Node) -> None:
    node.install("1")
    before = os.stat(node.path("opt/nvc/1/lib/nvc/node")).st_ino
    assert "is there" in node.install("1")
    assert os.stat(node.path("opt/nvc/1/lib/nvc/node")).st_ino == before


def test_uninstalling_removes_everything_of_the_plugin(node: Node) -> None:
    """And nothing of others: their CDI files, their sockets."""
    node.install("1")
    sockets = ("plugins/gpu.nvc.dev/dra.sock", "plugins_registry/gpu.nvc.dev-reg.sock", "device-plugins/nvc-1.sock")
    others = ("plugins/other/dra.sock", "device-plugins/kubelet.sock")
    for name in (*sockets, *others):
        os.makedirs(os.path.dirname(node.path("var/lib/kubelet", name)), exist_ok=True)
        open(node.path("var/lib/kubelet", name), "w").close()
    mine = node.specification("devices.json", "k8s.gpu.nvc.dev/gpu")
    theirs = node.specification("nvidia.json", "nvidia.com/gpu")
    assert node.uninstall() == (0, "nvc node: removed from this node\n")
    assert os.listdir(node.path("opt/nvc")) == [] and os.listdir(node.path("run/nvc")) == []
    assert not os.path.exists(node.path("var/lib/nvc/kubernetes")) and not os.path.exists(mine)
    assert os.path.exists(theirs)
    assert not [name for name in sockets if os.path.exists(node.path("var/lib/kubelet", name))]
    assert [name for name in others if os.path.exists(node.path("var/lib/kubelet", name))] == list(others)


def test_uninstalling_waits_for_claims(node: Node) -> None:
    """Nothing is removed then, and the file of the claim is named."""
    node.install("1")
    node.specification("claim.json", "k8s.gpu.nvc.dev/claim")
    code, said = node.uninstall()
    assert code == 1 and "/run/cdi/claim.json" in said and "delete the pods" in said
    assert node.versions == ["1", "current"]


def test_a_file_that_cannot_be_read_stops_it(node: Node) -> None:
    """Whether it is a claim's cannot be told."""
    node.install("1")
    with open(node.path("run/cdi/torn.json"), "w", encoding="ascii") as out:
        out.write("{")
    code, said = node.uninstall()
    assert code == 1 and "/run/cdi/torn.json" in said
    assert node.versions == ["1", "current"]


@pytest.mark.parametrize("own", ["usr/lib/nvc", "usr/local/lib/nvc", ""])
def test_an_installation_of_the_host_is_left_alone(node: Node, own: str) -> None:
    """Its slices stay, by its files or by an nvcd that answers."""
    node.install("1")
    with socket.socket(socket.AF_UNIX) as listener:
        if own:
            os.makedirs(node.path(own))
        else:
            os.makedirs(node.path("run/nvc/nvcd"))
            listener.bind(node.path("run/nvc/nvcd/nvcd.sock"))
            listener.listen()
        assert node.uninstall()[0] == 0
    assert os.path.isdir(node.path("run/nvc/vgpu"))


def test_slices_that_live_are_left_alone(node: Node) -> None:
    """Of `vgpu run`, of pods by NRI, of an nvc elsewhere: their memory still counts."""
    node.install("1")
    quota = node.path("run/nvc/vgpu/f-1-2-3/quota")
    os.mkdir(os.path.dirname(quota))
    open(quota, "w").close()
    words = ("unshare", "--mount", "sh", "-c", f"mount --bind '{quota}' '{SCRIPT}' && echo ready && exec cat")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=CLEAN_ENV) as program:
        assert program.stdout is not None and program.stdout.readline() == b"ready\n"
        assert node.uninstall()[0] == 0
    assert os.path.isfile(quota)


PURGE = """
for each in /run /var/lib /etc; do mount -t tmpfs none $each; done; mkdir -p {0} && touch {0}/quota /run/target
unshare --mount sh -c "{1} && sh '{2}' purge"
ls /run
"""


@pytest.mark.parametrize("lives", [True, False])
def test_who_purges_a_package_leaves_them_alone(lives: bool) -> None:
    """A node's pods may have slices by the chart."""
    slice = "/run/nvc/vgpu/f-1-2-3"
    bound = f"mount --bind {slice}/quota /run/target" if lives else "true"
    script = PURGE.format(slice, bound, f"{REPO}/packaging/scripts/postremove")
    done = run("unshare", "--mount", "sh", "-ec", script)
    assert ("nvc" in done.stdout.split()) is lives
