"""A containerd of a test's own with NRI, pods in it by crictl, and nvc-nri beside it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

from . import CLEAN_ENV, PATIENCE, cri, need, run, until
from .cluster.images import BUSYBOX, base
from .generations import built

TOP = """root = '{0}/root'
state = '{0}/state'
[grpc]
address = '{0}/containerd.sock'
"""
NRI = """[plugins.'io.containerd.nri.v1.nri']
socket_path = '{0}/nri.sock'
plugin_path = '{0}/plugins'
plugin_config_path = '{0}/conf.d'
{1}
"""
DEFAULT_VALIDATOR = """[plugins.'io.containerd.nri.v1.nri'.default_validator]
enable = true
"""
PROGRAMS = ("containerd", "containerd-shim-runc-v2", "crictl", "ctr")
HOST_NETWORK = 2  # CRI's NamespaceMode.NODE


def until_ready(process: subprocess.Popen[str]) -> None:
    """Wait until nvc-nri, whose standard error is a pipe, is registered."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if ": ready" in line:
            break
    assert process.poll() is None, "".join(lines)


class Containerd:
    """A running containerd."""

    def __init__(self, directory: str, stage: str) -> None:
        self.directory = directory
        self.stage = stage
        directories = ":".join(os.path.dirname(built(name)) for name in PROGRAMS)
        self.environment = {**CLEAN_ENV, "PATH": f"{directories}:{CLEAN_ENV['PATH']}"}
        self._serial = 0
        os.makedirs(directory)
        with open(f"{directory}/config.toml", "w", encoding="ascii") as out:
            more = NRI.format(directory, cri.NRI_PATIENCE) + DEFAULT_VALIDATOR
            out.write(cri.containerd(need("runc"), TOP.format(directory), more))

    @contextlib.contextmanager
    def running(self) -> Iterator[Containerd]:
        """Until the end of the context; then its pods are gone too."""
        with open(f"{self.directory}/log", "ab") as log:
            process = subprocess.Popen(
                [built("containerd"), "--config", f"{self.directory}/config.toml"],
                env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self._process = process
        try:
            until(lambda: self.crictl("info", check=False).returncode == 0, self.log)
            yield self
            if process.poll() is None:
                self.crictl("rmp", "--all", "--force")
        finally:
            self.end()

    def end(self) -> None:
        """Stop containerd. Pods go on, as they do on a host."""
        self._process.terminate()
        self._process.wait(PATIENCE)

    def log(self) -> str:
        """What containerd has logged."""
        with open(f"{self.directory}/log", encoding="utf-8") as file:
            return file.read()[-8000:]

    def load(self) -> None:
        """Give it the images of pods."""
        for archive in base(self.directory):
            words = ["-a", f"{self.directory}/containerd.sock", "-n", "k8s.io", "images", "import", archive]
            self.sh(built("ctr"), *words)

    def sh(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program with containerd's environment."""
        return run(*words, env=self.environment, check=check)

    def crictl(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.sh(
            built("crictl"), "--timeout=60s", f"--runtime-endpoint=unix://{self.directory}/containerd.sock",
            *words, check=check,
        )  # fmt: skip

    def pod(
        self, script: str, annotations: Mapping[str, str], namespace: str = "default", **container: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a pod with the container `main` to its end: what it printed, or why it was not created.

        `container` is merged into its configuration.
        """
        self._serial += 1
        name = f"pod{self._serial}"
        pod = {
            "metadata": {"name": name, "namespace": namespace, "uid": name, "attempt": 0},
            "annotations": dict(annotations),
            "log_directory": self.directory,
            "linux": {"security_context": {"namespace_options": {"network": HOST_NETWORK}}},
        }
        main = {
            "metadata": {"name": "main"},
            "image": {"image": BUSYBOX},
            "command": ["sh", "-c", script],
            "log_path": f"{name}.log",
            "linux": {},
            **container,
        }
        paths = []
        for kind, document in (("pod", pod), ("container", main)):
            paths.append(f"{self.directory}/{name}-{kind}.json")
            with open(paths[-1], "w", encoding="ascii") as out:
                json.dump(document, out)
        sandbox = self.crictl("runp", paths[0]).stdout.strip()
        try:
            made = self.crictl("create", sandbox, paths[1], paths[0], check=False)
            if made.returncode:
                return made
            container_id = made.stdout.strip()
            started = self.crictl("start", container_id, check=False)
            if started.returncode:
                return started
            until(lambda: self._state(container_id)["state"] == "CONTAINER_EXITED", self.log)
            code = int(self._state(container_id)["exitCode"])
            with open(f"{self.directory}/{name}.log", encoding="utf-8") as file:
                # Each line has a time, a stream and a tag before it.
                text = "".join(line.split(" ", 3)[3] for line in file)
            return subprocess.CompletedProcess((), code, text, "")
        finally:
            self.crictl("rmp", "--force", sandbox)

    def _state(self, container: str) -> dict[str, Any]:
        return json.loads(self.crictl("inspect", container).stdout)["status"]

    @contextlib.contextmanager
    def plugin(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """nvc-nri, registered; standard error is a pipe."""
        process = subprocess.Popen(
            [f"{self.stage}/bin/nvc-nri", f"--socket={self.directory}/nri.sock", *words],
            env=self.environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            until_ready(process)
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)
