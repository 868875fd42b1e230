"""Podman with the hook's file and with the runtime."""

from __future__ import annotations

import pytest
from support.clients import client_ran
from support.engines import DIRECT, PODMAN, Host

GENERATIONS = ("debian", "sid", "newest")
HOOKS = ("/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d", "/run/hooks.d")
LOOK = "nvidia-smi -L; ls /dev | grep nvidia; cat /dev/nvidia1"


def podman_run(host: Host, options: str, script: str, check: bool = True, **words: str) -> list[str]:
    """The lines of output and errors of a shell script in a container."""
    command = f"podman {words.get('before', '')} {PODMAN} run --rm {DIRECT} --network host {options}"
    limits = "--ulimit nofile=1024:1024 --ulimit nproc=1024:1024"
    done = host.sh(f"{command} {limits} --rootfs /run/rootfs sh -c '{script}'", check=False)
    assert (done.returncode == 0) is check, done.stderr
    return (done.stdout + done.stderr).splitlines()


def test_version(host: Host) -> None:
    client_ran("Podman", host.sh("podman --version").stdout, "root", "the hook, the runtime")


@pytest.mark.parametrize("directory", HOOKS)
def test_hooks_d(host: Host, directory: str) -> None:
    """A directory that podman does not read by itself is added to those it reads."""
    host.sh(f"mkdir -p {directory}")
    configure = f"nvc-cli runtime configure --engine podman --hook-dir {directory}"
    host.sh(configure)
    try:
        lines = podman_run(host, "--runtime runc -e NVIDIA_VISIBLE_DEVICES=1", LOOK, check=False)
        assert lines[0].startswith("GPU 0:") and "nvidia1" in lines and "nvidia0" not in lines
        assert "No such device or address" in lines[-1]
        assert podman_run(host, "--runtime runc", "ls /dev | grep -c nvidia || true") == ["0"]
    finally:
        host.sh(f"{configure} --remove")
    assert podman_run(
        host, "--runtime runc -e NVIDIA_VISIBLE_DEVICES=1", "ls /dev | grep -c nvidia || true"
    ) == ["0"]


def test_a_directory_named_on_the_command_line(host: Host) -> None:
    host.sh("mkdir -p /run/own; nvc-cli runtime configure --engine podman --hook-dir /run/own")
    host.sh("nvc-cli runtime configure --engine podman --remove --config /run/none")
    lines = podman_run(
        host,
        "--runtime runc -e NVIDIA_VISIBLE_DEVICES=all",
        "nvidia-smi -L | wc -l",
        before="--hooks-dir /run/own",
    )
    assert lines == ["2"]
    host.sh("nvc-cli runtime configure --engine podman --remove --hook-dir /run/own")


def test_the_runtime(host: Host) -> None:
    host.sh("nvc-cli runtime configure --engine podman")
    lines = podman_run(host, "--runtime nvc -e NVIDIA_VISIBLE_DEVICES=1", LOOK, check=False)
    assert lines[0].startswith("GPU 0:") and "nvidia1" in lines and "nvidia0" not in lines
    assert "No such device or address" in lines[-1]
    # Podman alone writes then, and not the runtime, too.
    unknown = "--runtime nvc --log-driver k8s-file -e NVIDIA_VISIBLE_DEVICES=9"
    (error,) = podman_run(host, unknown, "true", check=False)
    assert "nvc-runtime: device error: 9: unknown device" in error
    host.sh("nvc-cli runtime configure --engine podman --remove")
    assert "containers.conf.d" not in host.sh("ls /etc/containers").stdout
