"""The package is not removed under containers whose engine needs nvc-runtime to stop them."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
from support import CLEAN_ENV, REPO, run, until
from support.builds import make
from support.debian import APT, Debian
from support.engines import DAEMON_JSON, IMAGE, PODMAN, Host
from support.packages import NEWER, deb
from support.rootfs import make_rootfs

pytestmark = pytest.mark.nightly

DOCKER = (
    f"docker run -d -i --network none --runtime nvc -e NVIDIA_VISIBLE_DEVICES=all --name web {IMAGE} cat"
)


def install_docker(debian: Debian, scratch: str) -> None:
    """Docker, which runs and has an image, and `systemctl` for it."""
    debian.sh(f"{APT} update && {APT} install -y --no-install-recommends docker.io", timeout=300)
    debian.write("/etc/docker/daemon.json", DAEMON_JSON)
    debian.put(os.path.join(REPO, "tests/support/systemctl.py"), "/root")
    script = '#!/bin/sh\nexec python3 -I /root/systemctl.py "$@"\n'
    debian.write("/usr/local/sbin/systemctl", script, 0o755)
    debian.sh("nvc-cli sim create /srv/driver --gpus 2")
    debian.sh("nvc-cli config set nvidia-container-cli.root /srv/driver")
    debian.sh("systemctl start docker")
    rootfs = make_rootfs(os.path.join(scratch, "rootfs"))
    with subprocess.Popen(["tar", "-C", rootfs, "-c", "."], stdout=subprocess.PIPE, env=CLEAN_ENV) as packed:
        run(*debian.namespace, "docker", "import", "-", IMAGE, stdin=packed.stdout)


def test_removal_under_docker(installed: str, newer: str, scratch: str) -> None:
    with Debian(f"{scratch}/debian", installed) as debian:
        debian.put(deb(newer), "/root")
        install_docker(debian, scratch)
        try:
            debian.sh("nvc-cli runtime configure --engine docker && systemctl restart docker")
            debian.sh(DOCKER)
            inside = "docker exec web nvidia-smi -L"
            wanted = debian.sh(inside).stdout
            assert "GPU 0: " in wanted

            for verb in ("remove", "purge"):
                done = debian.sh(f"{APT} {verb} -y nvc", check=False)
                assert done.returncode and "  containerd (moby): web\n" in done.stderr, done.stderr
                assert debian.sh(inside).stdout == wanted
            debian.sh(f"dpkg -i /root/nvc_{NEWER}*.deb")
            assert debian.sh(inside).stdout == wanted
            debian.sh("docker stop -t 0 web && docker rm web")
            debian.sh(f"{DOCKER} && NVC_REMOVE_IN_USE=1 {APT} purge -y nvc")
            debian.sh(f"dpkg -i /root/nvc_{NEWER}*.deb; docker stop -t 0 web")
            debian.sh(f"{APT} purge -y nvc")
            assert "/usr/bin/nvc-runtime" not in debian.files()
        finally:
            debian.sh("docker rm -f web; systemctl stop docker", check=False)


def test_the_page_of_docker(installed: str, scratch: str) -> None:
    """docs/docker.md without the block for hosts that lack the package's link: `--gpus` works by that link."""
    with open(os.path.join(REPO, "docs/docker.md"), encoding="utf-8") as file:
        blocks = re.findall(r"^```sh\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL)
    (linking,) = (block for block in blocks[:-1] if "--hook-link" in block)
    blocks.remove(linking)
    with Debian(f"{scratch}/debian", installed) as debian:
        install_docker(debian, scratch)
        before = debian.read("/etc/docker/daemon.json")
        try:
            output = "".join(debian.sh(block).stdout for block in blocks)
        finally:
            debian.sh("systemctl stop docker", check=False)
        assert output.count("GPU 0: ") == 6 and output.count("GPU 1: ") == 1, output
        assert debian.read("/etc/docker/daemon.json") == before


def test_uninstall_under_podman(host: Host, scratch: str) -> None:
    """The same question, of `make uninstall` and of conmon."""
    prefix = os.path.join(scratch, "prefix")
    make("install", f"PREFIX={prefix}")
    words = f"--network host --runtime {prefix}/bin/nvc-runtime --ulimit nofile=1024:1024"
    uninstall = ("make", "-s", "--no-print-directory", "-C", REPO, "uninstall", f"PREFIX={prefix}")
    host.sh(f"podman {PODMAN} run -d -i --name db {words} --ulimit nproc=1024:1024 --rootfs /run/rootfs cat")
    try:
        done = run(*uninstall, check=False)
        assert done.returncode and "conmon: db\n" in done.stderr, done.stderr
        assert run("/usr/bin/env", f"{prefix}/lib/nvc/in-use").stdout == "conmon: db\n"
    finally:
        host.sh(f"podman {PODMAN} rm -f -t 0 db")
    until(lambda: not run("/usr/bin/env", f"{prefix}/lib/nvc/in-use").stdout)  # conmon may end a moment later
    run(*uninstall)
    assert not os.path.exists(prefix)
