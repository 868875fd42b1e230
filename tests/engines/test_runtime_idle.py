"""nvc-runtime and nvc-hook for containers that ask for nothing: they do not wait for an interpreter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.bundle import default_config
from support.engines import CONFIG_TOML, Host
from support.nightly import few

from nvc.request import environment

STUB = "/run/stub/runc"  # in the low-level runtime's place


@pytest.fixture(autouse=True)
def stub(host: Host) -> Iterator[None]:
    host.write(STUB, "#!/bin/sh\n", 0o755)
    yield
    host.write("/etc/nvc/config.toml", CONFIG_TOML)


def asking(host: Host, *variables: str) -> dict[str, Any]:
    """The configuration of a container with these variables."""
    config = default_config(host.rootfs())
    config["process"]["env"] += variables
    return config


def asks_python(host: Host, document: str, settings: str = "") -> bool:
    """Whether interpreters are started to see what a container of this configuration is to get: by the runtime and
    by the hook, which must agree."""
    host.write("/run/b/config.json", document)
    host.write(
        "/etc/nvc/config.toml",
        f'{CONFIG_TOML}\n[nvidia-container-runtime]\nruntimes = ["{STUB}"]\n{settings}',
    )
    host.write(
        "/run/state.json", json.dumps({"ociVersion": "1.0.2", "pid": 1, "bundle": "/run/b", "id": "x"})
    )
    asked = set()
    for command in ("nvc-runtime create --bundle /run/b x", "nvc-hook prestart < /run/state.json"):
        trace = host.sh(f"strace -f -e trace=execve -o /run/trace {command} || true; cat /run/trace")
        asked.add('"-I", "-S", "-B", "-c"' in trace.stdout.partition(f'execve("{STUB}"')[0])
    assert len(asked) == 1
    return asked.pop()


#: As NVIDIA's own package has it.
USUAL = """
# debug = "/var/log/nvidia-container-runtime.log"
log-level = "info"
mode = "auto"
    [nvidia-container-runtime.modes.cdi]
    annotation-prefixes = ["cdi.k8s.io/"]
"""


def test_a_container_that_asks_for_nothing_waits_for_no_interpreter(host: Host) -> None:
    plain = asking(host, "A=<1>&")
    text = json.dumps(plain).replace("<", "\\u003c").replace(">", "\\u003E").replace("&", "\\u0026")
    assert not asks_python(host, text)
    assert not asks_python(host, text, USUAL)


def test_who_may_ask_for_something_is_looked_at(host: Host) -> None:
    """The static program knows the words for which nvc.request.environment looks."""
    plain = asking(host)
    for name in (environment.VISIBLE, environment.CUDA_VERSION, environment.CGPU_DEVICES):
        assert asks_python(host, json.dumps(asking(host, f"{name}=0")))
    mount = {"source": "/dev/null", "destination": f"{environment.VOLUMES}/0"}
    assert asks_python(host, json.dumps({**plain, "mounts": [*plain["mounts"], mount]}))
    for letter in ("\\u0049", "\\u0069"):
        escaped = json.dumps(asking(host, f"{environment.VISIBLE}=0")).replace("I", letter)
        assert asks_python(host, escaped)


@pytest.mark.parametrize(
    "settings",
    few([
        'mode = "cdi"\n',
        "mode='jit-cdi'\n",
        '"mode" = "cdi"\n',
        'mode = """\ncdi"""\n',
        'modes.cdi.annotation-prefixes = ["x"]\nmodes . x = 1\n',
        '[x]\nnvidia-container-runtime = { mode = "cdi" }\n',
        '["nvidia-container-runtime"]\n',
        'debug = "/run/debug.log"\n',
        '[nvc]\nlog = "/run/nvc.log"\n',
        'swarm-resource = "DOCKER_RESOURCE_GPU"\n',
    ], 3),
)  # fmt: skip
def test_settings_by_which_others_ask(host: Host, settings: str) -> None:
    assert asks_python(host, json.dumps(asking(host)), settings)


def test_the_hook_hands_on_what_it_has_read(host: Host) -> None:
    """Whether the state came by a pipe or a file; what it refuses is said by Python."""
    asks = json.dumps(asking(host, "NVIDIA_VISIBLE_DEVICES=all"))
    for document, pid, error in (
        (asks, 1, "pid: 1 is no container's"),
        (asks, "x", "pid: not a process id"),
        (json.dumps(asking(host)), "x", "pid: not a process id"),
        (json.dumps(asking(host)), 1, ""),
    ):
        host.write("/run/b/config.json", document)
        host.write("/run/state.json", json.dumps({"pid": pid, "bundle": "/run/b"}, indent=1))
        for command in (
            "nvc-hook prestart < /run/state.json",
            "cat /run/state.json | nvc-hook createRuntime",
        ):
            done = host.sh(command, check=False)
            assert error in done.stderr and done.returncode == (1 if error else 0)
            assert error or not done.stderr


def test_a_hook_with_options_reads_its_own_settings(host: Host) -> None:
    host.write("/run/b/config.json", json.dumps(asking(host)))
    host.write("/run/state.json", json.dumps({"pid": 1, "bundle": "/run/b"}))
    done = host.sh("nvc-hook -config /run/none.toml prestart < /run/state.json", check=False)
    assert done.returncode == 1 and "/run/none.toml" in done.stderr
