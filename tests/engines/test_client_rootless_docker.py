"""Docker of an ordinary user's own: the daemon that RootlessKit starts, with the runtime `nvidia` and `--gpus`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.clientdebs import CLIENTS
from support.clients import client_ran, named
from support.engines import DAEMON_JSON, IMAGE, Host
from support.reachable import reachable

pytestmark = pytest.mark.engines
HOME, RUN = "/srv/home", "/run/user/4000"
CONFIG = f"{HOME}/.config/docker/daemon.json"
#: slirp4netns opens /dev/net/tun as the user.
USER = f"""
echo lab:x:4000:4000::{HOME}:/bin/sh >> /etc/passwd
echo lab:x:4000: >> /etc/group
echo lab:100000:65536 | tee /etc/subuid > /etc/subgid
mkdir -p {RUN}
chown -R 4000:4000 {RUN} {HOME}
chmod 700 {RUN}
mknod -m 666 /run/tun c 10 200
mount --bind /run/tun /dev/net/tun
"""
#: Containers have no network, so neither does the daemon need more than a network namespace.
NETWORK = "NET=slirp4netns PORT_DRIVER=none SLIRP4NETNS_SANDBOX=false SLIRP4NETNS_SECCOMP=false"
SETTINGS = " ".join(f"DOCKERD_ROOTLESS_ROOTLESSKIT_{setting}" for setting in NETWORK.split())
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV = f"env -i PATH={PATH} HOME={HOME} XDG_RUNTIME_DIR={RUN} DOCKER_HOST=unix://{RUN}/docker.sock {SETTINGS}"
AS_USER = f"setpriv --reuid 4000 --regid 4000 --clear-groups {ENV}"
START = f"""
{AS_USER} dockerd-rootless.sh < /dev/null > /run/rootless.log 2>&1 & echo $! > /run/rootless.pid
until {AS_USER} docker version > /dev/null 2>&1; do
    kill -0 $(cat /run/rootless.pid) || {{ cat /run/rootless.log >&2; exit 1; }}
done
tar -C /run/rootfs -c . | {AS_USER} docker import - {IMAGE}
"""


@pytest.fixture(scope="module", autouse=True)
def daemon(host: Host) -> Iterator[None]:
    """As NVIDIA's guide has it, but that cgroups need no setting."""
    reachable(host)
    named(host)
    CLIENTS["rootless"].put(host)
    host.rootfs()
    host.write(CONFIG, DAEMON_JSON)
    host.sh("ln -s /usr/share/docker.io/contrib/dockerd-rootless.sh /usr/local/bin")
    host.sh(USER)
    host.sh(f"{AS_USER} nvidia-ctk runtime configure --runtime=docker --config={CONFIG}")
    host.sh(START)
    yield
    host.sh("kill $(cat /run/rootless.pid); tail --pid=$(cat /run/rootless.pid) -f /dev/null")


def test_version(host: Host) -> None:
    said = host.sh(f"{AS_USER} docker version -f '{{{{.Server.Version}}}}'").stdout
    client_ran("Docker, rootless", said, "user", "`--gpus`")
    assert "rootless" in host.sh(f"{AS_USER} docker info -f '{{{{.SecurityOptions}}}}'").stdout


@pytest.mark.parametrize(
    "options, gpus",
    [
        ("--gpus all", ["nvidia0", "nvidia1"]),
        ("--gpus device=1", ["nvidia1"]),
    ],
)
def test_gpus_of_an_ordinary_user(host: Host, options: str, gpus: list[str]) -> None:
    look = 'sh -c "nvidia-smi -L; ls /dev | grep nvidia[0-9]"'
    seen = host.sh(f"{AS_USER} docker run --rm --network none {options} {IMAGE} {look}").stdout.splitlines()
    assert [line[:6] for line in seen[: len(gpus)]] == [f"GPU {number}:" for number in range(len(gpus))]
    assert seen[len(gpus) :] == gpus
