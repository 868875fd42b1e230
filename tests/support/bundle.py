"""OCI bundles, run for real: a config.json, hooks, and runc or crun.

bundle = Bundle(tmp_path / "bundle", rootfs)
bundle.hook("prestart", launcher, ["nvc-hook", "prestart"], env=["PATH=/usr/bin"])
done = bundle.run("runc", "ls /dev")        # CompletedProcess: stdout, stderr, returncode
with bundle.created("runc") as container:   # created, not started: container.pid is its init
    ...
    container.exec("ls /dev")               # after container.start()
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from . import CLEAN_ENV, need, run

RUNTIMES = ("runc", "crun")
#: Both runtimes take the host for one of cgroup v2 alone when cgroup2 is mounted at /sys/fs/cgroup itself.
UNIFIED = 'umount -R /sys/fs/cgroup 2>/dev/null; mount -t cgroup2 none /sys/fs/cgroup && exec "$@"'
CAPABILITIES = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETGID",
    "CAP_SETUID",
]
#: As Docker grants them by default; no GPU among them.
DEVICE_RULES: list[dict[str, Any]] = [
    {"allow": False, "access": "rwm"},
    *(
        {"allow": True, "type": "c", "major": major, "minor": minor, "access": "rwm"}
        for major, minor in ((1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2))
    ),
]
_serial = itertools.count()


def _hybrid_cgroups() -> bool:
    """Whether cgroup v1 hierarchies are mounted: crun refuses those that also have a v2 one."""
    return not os.path.exists("/sys/fs/cgroup/cgroup.controllers")


class Container:
    """One container of a runtime, from `create` to `delete`."""

    def __init__(self, bundle: Bundle, runtime: str, name: str) -> None:
        self.bundle = bundle
        self.runtime = runtime
        self.name = name
        self.pid_file = os.path.join(bundle.directory, f"{name}.pid")

    def call(self, *arguments: str, check: bool = True) -> Any:
        """Run one verb of the runtime on this container."""
        return run(*self.bundle.command(self.runtime), *arguments, check=check)

    @property
    def state(self) -> dict[str, Any]:
        """The state document, as the runtime prints it."""
        return json.loads(self.call("state", self.name).stdout)

    @property
    def pid(self) -> int:
        """The host's process id of the container's init; to ask the runtime starts it each time."""
        with open(self.pid_file, encoding="ascii") as text:
            return int(text.read())

    def start(self) -> None:
        """Let the process of the container run."""
        self.call("start", self.name)

    def exec(self, script: str, check: bool = True) -> Any:
        """Run a shell line in the started container; the CompletedProcess is returned."""
        return self.call("exec", self.name, "/bin/sh", "-c", script, check=check)


class Bundle:
    """A bundle directory around `rootfs`. Change `config` freely before `run` or `created`."""

    def __init__(self, directory: str | os.PathLike[str], rootfs: str | os.PathLike[str]) -> None:
        self.directory = os.fspath(directory)
        self.rootfs = os.fspath(rootfs)
        self.config = default_config(self.rootfs)
        self.unified = False  # whether runtimes use cgroup v2 alone
        self.before: tuple[str, ...] = ()  # what starts the runtime
        os.makedirs(self.directory, exist_ok=True)

    def hook(
        self,
        kind: str,
        path: str | os.PathLike[str],
        args: list[str],
        env: list[str] | None = None,
        timeout: int = 60,
    ) -> None:
        """Append a hook. `args` is the whole argv; without `env` it inherits what the runtime gives."""
        entry: dict[str, Any] = {"path": os.fspath(path), "args": args, "timeout": timeout}
        if env is not None:
            entry["env"] = env
        self.config.setdefault("hooks", {}).setdefault(kind, []).append(entry)

    def user_namespace(self) -> None:
        """Give the container a user namespace whose root is the host's user 100000."""
        linux = self.config["linux"]
        linux["namespaces"].append({"type": "user"})
        linux["uidMappings"] = linux["gidMappings"] = [{"containerID": 0, "hostID": 100000, "size": 65536}]

    def command(self, runtime: str) -> list[str]:
        """The argv that a verb follows. crun needs a mount namespace where /sys/fs/cgroup is plain v2."""
        state = os.path.join(self.directory, f"state-{runtime}")
        if self.unified:
            words = ["--mount", "--propagation", "private", "/bin/sh", "-c", UNIFIED, "sh"]
            if runtime == "crun":  # which raises a limit that it may not
                words += [sys.executable, os.path.join(os.path.dirname(__file__), "without_memlock.py")]
            return [*self.before, need("unshare"), *words, need(runtime), "--root", state]
        if runtime == "crun" and _hybrid_cgroups():
            shell = 'mount -t cgroup2 none /sys/fs/cgroup && exec "$@"'
            return [
                *(need("unshare"), "--mount", "--propagation", "slave", "/bin/sh", "-c", shell, "sh"),
                *(need("crun"), "--root", state, "--cgroup-manager=disabled"),
            ]
        return [*self.before, need(runtime), "--root", state]

    def write(self, *script: str) -> str:
        """Write config.json for a shell script (or for `process.args` as they are) and return its path."""
        if script:
            self.config["process"]["args"] = ["/bin/sh", "-c", *script]
        path = os.path.join(self.directory, "config.json")
        with open(path, "w", encoding="utf-8") as out:
            json.dump(self.config, out, indent=1)
        return path

    def run(self, runtime: str, script: str, check: bool = True, env: dict[str, str] | None = None) -> Any:
        """Create, start, wait and delete a container that runs `script`; its output is captured."""
        self._for_runtime(runtime)
        self.write(script)
        name = f"nvc-test-{os.getpid()}-{next(_serial)}"
        command = [*self.command(runtime), "run", "--bundle", self.directory, name]
        return run(*command, check=check, env=CLEAN_ENV if env is None else env)

    @contextlib.contextmanager
    def created(self, runtime: str, script: str = "exec sleep 600") -> Iterator[Container]:
        """A container after `create`: hooks have run, its process has not. Deleted at the end."""
        self._for_runtime(runtime)
        self.write(script)
        container = Container(self, runtime, f"nvc-test-{os.getpid()}-{next(_serial)}")
        # The container's process keeps stdout: a pipe would be held open for as long as it lives.
        log = os.path.join(self.directory, "create.log")
        with open(log, "w+", encoding="utf-8") as out:
            command = [*self.command(runtime), "create", "--bundle", self.directory]
            command += ["--pid-file", container.pid_file, container.name]
            done = run(*command, check=False, capture_output=False, stdout=out, stderr=out)
        try:
            if done.returncode != 0:
                with open(log, encoding="utf-8") as text:
                    raise AssertionError(f"{runtime} create: exit {done.returncode}\n{text.read()}")
            yield container
        finally:
            container.call("delete", "--force", container.name, check=False)

    def _for_runtime(self, runtime: str) -> None:
        """What a runtime cannot do on this host is taken out of the configuration."""
        if runtime == "crun" and _hybrid_cgroups() and not self.unified:
            self.config["linux"].pop("cgroupsPath", None)


def default_config(rootfs: str) -> dict[str, Any]:
    """A configuration like an engine's: five namespaces, Docker's device rules, few capabilities."""
    nosuid = ["nosuid", "noexec", "nodev"]
    return {
        "ociVersion": "1.0.2",
        "root": {"path": rootfs, "readonly": False},
        "hostname": "nvc-test",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": ["/bin/true"],
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), CAPABILITIES),
            "noNewPrivileges": True,
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": nosuid},
            {
                "destination": "/dev",
                "type": "tmpfs",
                "source": "tmpfs",
                "options": ["nosuid", "strictatime", "mode=755", "size=65536k"],
            },
            {
                "destination": "/dev/pts",
                "type": "devpts",
                "source": "devpts",
                "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"],
            },
            {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": [*nosuid, "ro"]},
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")],
            "resources": {"devices": list(DEVICE_RULES)},
        },
    }
