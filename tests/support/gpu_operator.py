"""nvc's image as NVIDIA's GPU operator deploys it: what its DaemonSet mounts, sets and runs, without a cluster.

node = Node(host, image)             a pid namespace whose first process has the files of `host`
with node.toolkit(RUNTIME="docker") as toolkit:
    toolkit.ready()                  it has said so
    assert toolkit.end() == 0        SIGTERM, as the kubelet ends it

Facts of the manifest: gpu-operator a22dbf67, assets/state-container-toolkit and controllers/object_controls.go.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from types import TracebackType

from . import CLEAN_ENV, PATIENCE, REPO, need, run, until
from .engines import DRIVER, Host

ROOT = "/usr/local/nvidia"
TOOLKIT = f"{ROOT}/toolkit"
#: The operator's script waits for this file of its validator, which is there, and takes variables from it.
READY = f"IS_HOST_DRIVER=false\nNVIDIA_DRIVER_ROOT={DRIVER}\nDRIVER_ROOT_CTR_PATH=/driver-root\n"
ENTRYPOINT = """#!/bin/sh
set -e
set -o allexport
. /run/nvidia/validations/driver-ready
exec nvidia-toolkit
"""
#: Directories of the host and where the container has them.
MOUNTS = (
    ("/run/nvidia/toolkit", "/run/nvidia/toolkit"), ("/run/nvidia/validations", "/run/nvidia/validations"),
    (ROOT, ROOT), ("/usr/share/containers/oci/hooks.d", "/usr/share/containers/oci/hooks.d"),
    (DRIVER, "/driver-root"), ("/", "/host"), ("/run/cdi", "/var/run/cdi"), ("/dev", "/dev"), ("/proc", "/proc"),
)  # fmt: skip
CONFIGS = {
    "docker": ("/etc/docker/daemon.json", ""),
    "containerd": ("/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml"),
    "crio": ("/etc/crio/config.toml", "/etc/crio/crio.conf.d/99-nvidia.conf"),
}
SOCKETS = {"docker": "/run/docker.sock", "containerd": "/run/containerd/containerd.sock"}
START = """
set -e
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o "lowerdir=$1,upperdir=/mnt/upper,workdir=/mnt/work" overlay /mnt/root
root=/mnt/root; shift
while [ "$1" != -- ]; do
    mkdir -p "$1" "$root$2"
    mount --rbind "$1" "$root$2"
    [ "$2" != /host ] || mount -o remount,bind,ro "$root$2"
    shift 2
done
shift
[ -z "$READ_ONLY" ] || mount -o remount,bind,ro "$root$READ_ONLY"
exec chroot "$root" /bin/sh -c /bin/entrypoint.sh
"""


def image(stage: str, directory: str) -> str:
    """The files of the image that `make image` makes, and the operator's script where a container has it."""
    archive, root = f"{directory}/nvc.tar", f"{directory}/image"
    run(sys.executable, f"{REPO}/packaging/image.py", archive, timeout=600)
    with tarfile.open(archive) as tar:
        layers = json.loads(_member(tar, "index.json"))["manifests"]
        (layer,) = json.loads(_member(tar, _blob(layers[0])))["layers"]
        with tarfile.open(fileobj=io.BytesIO(_member(tar, _blob(layer)))) as files:
            files.extractall(root)
    os.unlink(archive)
    with open(f"{root}/usr/bin/entrypoint.sh", "w", encoding="ascii") as out:
        out.write(ENTRYPOINT)
    os.chmod(f"{root}/usr/bin/entrypoint.sh", 0o700)
    return root


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    assert file is not None
    return file.read()


def _blob(descriptor: dict[str, str]) -> str:
    return "blobs/sha256/" + descriptor["digest"].removeprefix("sha256:")


class Toolkit:
    """One container."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        self.said: list[str] = []
        self._process = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def __enter__(self) -> Toolkit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self.kill()

    def ready(self) -> None:
        """Wait until it says that everything is done."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(line.rstrip("\n"))
            if line == "nvc toolkit: ready\n":
                return
        raise AssertionError(f"it ended with {self.wait()}: {self.said}")

    def end(self, number: int = signal.SIGTERM) -> int:
        """Its exit code."""
        outer = self._process.pid  # nsenter, which waits for it in the other pid namespace
        with open(f"/proc/{outer}/task/{outer}/children", encoding="ascii") as file:
            os.kill(int(file.read()), number)
        return self.wait()

    def wait(self) -> int:
        """Its exit code, when it ends by itself."""
        rest, _ = self._process.communicate(timeout=PATIENCE)
        self.said += rest.splitlines()
        return self._process.returncode

    def kill(self) -> None:
        self.end(signal.SIGKILL)


class Node:
    """A host's files and daemons in a pid namespace of their own, whose first process is as a node's is."""

    def __init__(self, host: Host, files: str) -> None:
        self.host = host
        self.image = files
        hold = "mount -t proc proc /proc; echo ready; exec cat"
        words = [need("unshare"), "--pid", "--fork", "--mount", "--propagation", "private", "/bin/sh", "-c", hold]
        self._holder = subprocess.Popen(
            [*host.namespace, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=CLEAN_ENV
        )
        assert self._holder.stdout is not None and self._holder.stdout.readline() == "ready\n"
        with open(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children", encoding="ascii") as file:
            self.first = int(file.read())
        self.write("/run/nvidia/validations/driver-ready", READY)

    def close(self) -> None:
        """End all of it."""
        self._holder.communicate()

    @property
    def namespaces(self) -> list[str]:
        return [need("nsenter"), f"--target={self.first}", "--mount", "--pid", "--wd=/"]

    def sh(self, script: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run shell lines on the node."""
        return run(*self.namespaces, "/bin/sh", "-ec", script, check=check)

    def write(self, path: str, text: str) -> None:
        script = 'mkdir -p "${1%/*}"; cat > "$1"'
        run(*self.namespaces, "/bin/sh", "-ec", script, "sh", path, stdin=None, input=text)

    def read(self, path: str) -> str:
        return run(*self.namespaces, "/bin/cat", path).stdout

    def toolkit(self, read_only: str = "", own_pids: bool = False, **variables: str) -> Toolkit:
        """The container with these variables beside those of the DaemonSet."""
        engine = variables.get("RUNTIME", "docker")
        config, drop_in = CONFIGS.get(engine, CONFIGS["docker"])
        mounts = [*MOUNTS, (os.path.dirname(config), "/runtime/config-dir")]
        env = {
            **CLEAN_ENV, "ROOT": ROOT, "NVIDIA_VISIBLE_DEVICES": "void", "RUNTIME": engine,
            "NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND": "management.nvidia.com/gpu",
            "TOOLKIT_PID_FILE": "/run/nvidia/toolkit/toolkit.pid", "READ_ONLY": read_only,
            "RUNTIME_CONFIG": f"/runtime/config-dir/{os.path.basename(config)}",
        }  # fmt: skip
        if drop_in:
            mounts.append((os.path.dirname(drop_in), "/runtime/config-dir.d"))
            env["RUNTIME_DROP_IN_CONFIG"] = f"/runtime/config-dir.d/{os.path.basename(drop_in)}"
            env["RUNTIME_DROP_IN_CONFIG_HOST_PATH"] = drop_in
        if engine in SOCKETS:
            mounts.append((os.path.dirname(SOCKETS[engine]), "/runtime/sock-dir"))
            env["RUNTIME_SOCKET"] = f"/runtime/sock-dir/{os.path.basename(SOCKETS[engine])}"
        words = [need("unshare"), "--mount", "--propagation", "private"]
        if own_pids:
            words += ["--pid", "--fork", "--mount-proc", "--kill-child"]
        script = ["/bin/sh", "-c", START, "sh", self.image, *(word for pair in mounts for word in pair), "--"]
        return Toolkit([*self.namespaces, *words, *script], {**env, **variables})

    def runtimes(self) -> set[str]:
        """The runtimes that dockerd knows."""
        done = self.sh("docker info --format '{{json .Runtimes}}'")
        return set(json.loads(done.stdout))

    def docker(self) -> None:
        """Start dockerd there."""
        self.sh("systemctl start docker")
        until(lambda: "runc" in self.runtimes())
