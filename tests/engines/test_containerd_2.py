"""containerd 2: what `configure` writes is what the daemon itself reads, whatever its `config dump` says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.engines import Host

GENERATIONS = ("sid", "newest")
CONFIGURE = "nvc-cli runtime configure --engine containerd"
CONFIG = "/etc/containerd/config.toml"
DROP_IN = "/etc/containerd/conf.d/99-nvc.toml"
PLUGIN = "plugins.'io.containerd.cri.v1.runtime'"
RUNC = f"[{PLUGIN}.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n"
OLD = "[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n"
#: The daemon's own table of runtimes, as its interface for Kubernetes shows it (`crictl info`).
FILES = {
    "none": None,
    "empty": "",
    "version": "version = 3\n",
    "runtimes": f"version = 3\n{RUNC}",
    "imports": 'version = 3\nimports = ["/etc/containerd/conf.d/*.toml"]\n',
    "other imports": 'version = 3\nimports = ["/etc/containerd/*.d/10-*.toml"]\n',
    "default": "DEFAULT",
    "version 2": f"version = 2\n{OLD}",
}


def lay(host: Host, text: str | None) -> str:
    """Make the file what a case begins with; the content is returned, "" for no file."""
    host.sh("rm -rf /etc/containerd; mkdir -p /etc/containerd")
    if text == "DEFAULT":
        text = host.sh("containerd config default").stdout
    if text is not None:
        host.write(CONFIG, text)
    return text or ""


def runtimes(host: Host) -> dict[str, Any]:
    """The runtimes that a containerd that is started now has."""
    host.sh("systemctl start containerd")
    try:
        status = host.sh(f"{CRICTL} info").stdout
    finally:
        host.sh("systemctl stop containerd")
    found: dict[str, Any] = json.loads(status)["config"]["containerd"]["runtimes"]
    return found


CRICTL = "crictl --runtime-endpoint unix:///run/containerd/containerd.sock"


@pytest.mark.parametrize("name", FILES)
def test_the_daemon_reads_it(host: Host, name: str) -> None:
    before = lay(host, FILES[name])
    host.sh(CONFIGURE)
    found = runtimes(host)
    assert found["nvc"]["options"]["BinaryName"] == "/usr/local/bin/nvc-runtime" and "runc" in found
    assert "ok " in host.sh("nvc-cli doctor engines.containerd").stdout
    assert "nothing to change" in host.sh(CONFIGURE).stderr
    host.sh(f"{CONFIGURE} --remove")
    if FILES[name] is None:
        host.sh(f"! test -e {CONFIG}")
    else:
        assert host.read(CONFIG) == before
    host.sh(f"! test -e {DROP_IN}")


def test_the_default_runtime(host: Host) -> None:
    lay(host, "version = 3\n")
    host.sh(f"{CONFIGURE} --set-as-default; systemctl start containerd")
    try:
        status = json.loads(host.sh(f"{CRICTL} info").stdout)
    finally:
        host.sh("systemctl stop containerd")
    assert status["config"]["containerd"]["defaultRuntimeName"] == "nvc"


def test_a_drop_in_that_nothing_imports_is_found(host: Host) -> None:
    lay(host, "version = 3\n")
    host.sh(f"{CONFIGURE}; printf 'version = 3\\n' > {CONFIG}")
    assert "nvc" not in runtimes(host)
    said = host.sh("nvc-cli doctor engines.containerd", check=False).stdout
    assert f"containerd does not read {DROP_IN}: {CONFIG} does not import it" in said
    host.sh(CONFIGURE)
    assert "nvc" in runtimes(host)
    host.sh("nvc-cli doctor engines.containerd")


def test_a_later_drop_in_that_names_another_program(host: Host) -> None:
    lay(host, "version = 3\n")
    table = f"[{PLUGIN}.containerd.runtimes.nvc]\nruntime_type = 'io.containerd.runc.v2'\n"
    table += f"[{PLUGIN}.containerd.runtimes.nvc.options]\nBinaryName = '/usr/bin/other'\n"
    host.write("/etc/containerd/conf.d/50-other.toml", f"version = 3\n{table}")
    host.write(CONFIG, 'version = 3\nimports = ["/etc/containerd/conf.d/*.toml"]\n')
    done = host.sh(CONFIGURE, check=False)
    assert done.returncode == 1 and "runtime nvc already exists: /usr/bin/other" in done.stderr
    host.sh(f"! test -e {DROP_IN}")


def test_ctr(host: Host) -> None:
    """By the runtime and by CDI, at the page's path: without an image there is no PATH."""
    lay(host, None)
    host.sh("nvc-cli --root /srv/sim cdi refresh; systemctl start containerd")
    try:
        run = "ctr run --rm --runc-binary /usr/local/bin/nvc-runtime"
        plain = "ctr run --rm --runc-binary /usr/local/bin/runc"
        # Into a file: ctr ends with success, now and then, without what the program wrote.
        look = "--rootfs /run/rootfs c1 /bin/sh -c '/usr/bin/nvidia-smi -L >/seen'"
        seen = "cat /run/rootfs/seen; rm /run/rootfs/seen"
        assert host.sh(f"{run} --env NVIDIA_VISIBLE_DEVICES=1 {look}; {seen}").stdout.count("GPU-") == 1
        assert host.sh(f"{plain} --device nvidia.com/gpu=all {look}; {seen}").stdout.count("GPU-") == 2
        done = host.sh(f"{run} --env NVIDIA_VISIBLE_DEVICES=0,3 {look}", check=False)
        assert done.returncode != 0 and "nvc-runtime: device error: 3: unknown device" in done.stderr
    finally:
        host.sh("systemctl stop containerd; rm -r /run/cdi")
