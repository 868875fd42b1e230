"""Pods of containerd and of CRI-O on a host of engines, by the interface that kubelet calls, without a kubelet.

with Pods(host, "crio") as pods:
    pods.start("job", handler="nvc", env={"NVIDIA_VISIBLE_DEVICES": "0"})
    pods.exec("job", "nvidia-smi -L")
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from types import TracebackType
from typing import Any

from . import PATIENCE, cri, run
from .cluster.images import BUSYBOX, base
from .engines import Host

SOCKETS = {"containerd": "/run/containerd/containerd.sock", "crio": "/run/crio/crio.sock"}
PROGRAMS = {name: f"/usr/local/bin/{name}" for name in ("runc", "conmon", "pinns")}
CNI = """{"cniVersion": "1.0.0", "name": "none", "plugins": [{"type": "loopback"}]}"""
#: Where the pods' cgroups are: their own, below nothing else of this machine.
GROUP = "/nvc-test-pods"


#: The host's network, and processes of the container's own.
ALONE = {"namespace_options": {"network": 2, "pid": 1}}


class Pods:
    """The engine, started with both images, and its pods: each has one container, in the host's network."""

    def __init__(self, host: Host, engine: str, systemd: bool = False) -> None:
        """With `systemd`, it makes the cgroups of CRI-O's pods, and the host's images are in no overlay."""
        self.host = host
        self.engine = engine
        self.systemd = systemd
        self.group = "nvctest.slice" if systemd else GROUP
        self.crictl = f"crictl --config /run/crictl.yaml --timeout {int(PATIENCE)}s"

    def configure(self) -> None:
        """Make the engine's files what they are before nvc is registered."""
        if self.engine == "containerd":
            self.host.write("/etc/containerd/config.toml", cri.containerd(PROGRAMS["runc"]))
            return
        storage = cri.STORAGE
        if self.systemd:
            storage = storage.replace('"overlay"', '"vfs"')
        places = ("/run/crio/logs", "/run/crio/clean", "/usr/lib/cni")
        settings = "disable_hostport_mapping = true"
        self.host.write(
            "/etc/crio/crio.conf", cri.crio(PROGRAMS, *places, systemd=self.systemd, runtime=settings)
        )
        self.host.write("/etc/containers/storage.conf", storage)
        self.host.write("/etc/containers/policy.json", cri.POLICY)
        # CRI-O takes every controller of this file for mounted.
        mounted = "grep -v '\t0$' /proc/cgroups | awk '$2 != 0 || /^#/' > /run/cgroups; "
        self.host.sh(f"{mounted} mount --bind /run/cgroups /proc/cgroups")

    def __enter__(self) -> Pods:
        self.host.write("/run/crictl.yaml", f"runtime-endpoint: unix://{SOCKETS[self.engine]}\n")
        self.host.write("/etc/cni/net.d/10-none.conflist", CNI)
        self.configure()
        with tempfile.TemporaryDirectory(dir=self.host.directory) as directory:
            archives = [os.path.abspath(path) for path in base(directory)]
            if self.engine == "crio":
                for archive in archives:
                    with open(archive, "rb") as file:  # the host may not see this directory
                        run(*self.host.namespace, "/bin/sh", "-c", "cat > /run/image.tar", stdin=file)
                    self.host.sh("podman load -q -i /run/image.tar; rm /run/image.tar")
            self.host.sh(f"systemctl start {self.engine}")
            if self.engine == "containerd":
                for archive in archives:
                    self.host.sh(f"ctr -n k8s.io images import {archive}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.host.sh(f"{self.crictl} stop --timeout 0 $({self.crictl} ps -q)", check=False)
        self.host.sh(f"{self.crictl} rmp -a -f; systemctl stop {self.engine}", check=False)
        self.host.sh("umount /proc/cgroups", check=False)

    def start(self, name: str, **wanted: Any) -> None:
        """Start the pod's container. Raises AssertionError with the engine's words."""
        done = self.try_start(name, **wanted)
        assert done.returncode == 0, done.stderr

    def try_start(
        self,
        name: str,
        handler: str = "",
        env: dict[str, str] | None = None,
        devices: tuple[str, ...] = (),
        annotations: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Start the pod's container, or show why it does not start.

        `handler` is what a RuntimeClass names, `devices` are what kubelet says of CDI, and `annotations` those
        of the pod.
        """
        pod = {
            "metadata": {"name": name, "uid": f"uid-{name}", "namespace": "lab", "attempt": 0},
            "log_directory": f"/run/pods/{name}",
            "annotations": annotations or {},
            "linux": {"cgroup_parent": self.group, "security_context": ALONE},
        }
        container = {
            "metadata": {"name": "main", "attempt": 0},
            "image": {"image": BUSYBOX},
            "command": ["/bin/sleep", "600"],
            "envs": [{"key": key, "value": value} for key, value in (env or {}).items()],
            "CDI_devices": [{"name": device} for device in devices],
            "log_path": "main.log",
            "labels": {"io.kubernetes.container.name": "main", "io.kubernetes.pod.name": name,
                       "io.kubernetes.pod.namespace": "lab"},
            "linux": {"security_context": ALONE},
        }  # fmt: skip
        self.host.write(f"/run/pods/{name}/pod.json", json.dumps(pod))
        self.host.write(f"/run/pods/{name}/container.json", json.dumps(container))
        runtime = f"--runtime {handler}" if handler else ""
        script = f"""cd /run/pods/{name}
        {self.crictl} runp {runtime} pod.json > pod
        {self.crictl} create "$(cat pod)" container.json pod.json > id
        {self.crictl} start "$(cat id)" """
        return self.host.sh(script, check=False)

    def exec(self, name: str, script: str) -> str:
        """The output of a shell script in the container."""
        id = self.host.read(f"/run/pods/{name}/id").strip()
        return self.host.sh(f"{self.crictl} exec {id} /bin/sh -c {shlex.quote(script)}").stdout

    def end(self, name: str) -> None:
        """Remove the pod."""
        self.host.sh(
            f"cd /run/pods/{name}; [ ! -s id ] || {self.crictl} stop --timeout 0 $(cat id); "
            f"{self.crictl} rmp -f $(cat pod); rm -r /run/pods/{name}"
        )

    def info(self) -> dict[str, Any]:
        """What `crictl info` shows."""
        return json.loads(self.host.sh(f"{self.crictl} info").stdout)
