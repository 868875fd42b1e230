"""What is known of a cluster, in DIRECTORY/state.json: enough for another process to end it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess

from .. import CLEAN_ENV
from ..processes import SHARED
from .processes import started, tracked

CNI = "/usr/lib/cni"
CONTAINERD, CRIO = "containerd", "crio"


def write(path: str, text: str, mode: int = 0o644) -> None:
    """Write a file and the directories above it."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)
    os.chmod(path, mode)


@dataclasses.dataclass
class Node:
    """One node; `keeper` is the process that holds its mount namespace."""

    name: str
    directory: str
    address: str
    cgroup: str
    bridge: str
    subnet: str
    keeper: int = 0


@dataclasses.dataclass
class State:
    """A cluster's directory, its addresses, and every process that was started, by name."""

    directory: str
    programs: str
    runtime: str = CONTAINERD
    number: int = 0
    token: str = ""
    nodes: dict[str, Node] = dataclasses.field(default_factory=dict)
    processes: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    addresses: list[str] = dataclasses.field(default_factory=list)
    made: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.children: list[subprocess.Popen[bytes]] = []  # of this process

    @property
    def address(self) -> str:
        return f"10.96.{self.number}.1"

    @property
    def url(self) -> str:
        return f"https://{self.address}:443"

    def save(self) -> None:
        write(f"{self.directory}/state.json", json.dumps(dataclasses.asdict(self), indent=1), 0o600)

    @classmethod
    def load(cls, directory: str) -> State:
        """Raises FileNotFoundError when there is no cluster."""
        with open(f"{directory}/state.json", encoding="utf-8") as text:
            fields = json.load(text)
        nodes = {name: Node(**given) for name, given in fields.pop("nodes").items()}
        return cls(**fields, nodes=nodes)

    def program(self, name: str) -> str:
        return os.path.join(self.programs, name)

    @property
    def environment(self) -> dict[str, str]:
        return {**CLEAN_ENV, "PATH": f"{self.programs}:{CLEAN_ENV['PATH']}", "HOME": "/root"}

    def start(self, name: str, words: list[str], node: Node | None = None) -> int:
        """Start a daemon with its output in DIRECTORY/log/NAME, in a node's mounts and cgroup if one is given."""
        before: list[str] = []
        if node:
            before = [
                "sh",
                "-c",
                f'echo $$ >{tracked()}/{node.cgroup}/daemons/cgroup.procs; exec "$@"',
                "sh",
            ]
            if node.keeper:
                before += ["nsenter", "-m", "-t", str(node.keeper), "--"]
        os.makedirs(f"{self.directory}/log", exist_ok=True)
        with open(f"{self.directory}/log/{name}", "ab") as log:
            made = subprocess.Popen(
                before + words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self.environment,
                cwd="/",
            )
        self.children.append(made)
        SHARED.add(made.pid)
        self.processes[name] = (made.pid, started(made.pid))
        self.save()
        return made.pid

    def must_run(self, *names: str) -> bool:
        """True; raises AssertionError with the end of the log of a daemon that has ended."""
        for name in names or self.processes:
            pid, when = self.processes[name]
            if started(pid) != when:
                with open(f"{self.directory}/log/{name}", encoding="utf-8", errors="replace") as log:
                    raise AssertionError(f"{name} has ended:\n{log.read()[-3000:]}")
        return True
