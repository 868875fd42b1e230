"""CRI-O: what a reload reads and what only a restart does, and its hooks."""

from __future__ import annotations

from support import until
from support.engines import Host
from support.pods import Pods

GENERATIONS = ("newest",)
DROP_INS = "/etc/crio/crio.conf.d"
MEMORY = "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits"


def nodes(pods: Pods, name: str) -> list[str]:
    return pods.exec(name, "ls /dev | grep nvidia[0-9] || true").split()


def crio_knows(pods: Pods) -> bool:
    return "nvc" in pods.info()["config"]["crio"]["Runtimes"]


def reloaded(host: Host) -> int:
    """How often CRI-O has read its configuration again."""
    return host.read("/run/crio.log").count("Configuration reload completed")


def reload(host: Host) -> None:
    before = reloaded(host)
    host.sh("systemctl reload crio")
    until(lambda: reloaded(host) > before)


def test_crio_reads_a_new_directory_at_a_restart(host: Host) -> None:
    """And says so; what is in a directory that was there is read at a reload."""
    configure = "nvc-cli runtime configure --engine crio"
    host.sh(f"rm -rf {DROP_INS}")
    with Pods(host, "crio") as pods:
        assert "systemctl restart crio" in host.sh(configure).stderr
        reload(host)
        assert not crio_knows(pods)
        host.sh("systemctl restart crio")
        assert crio_knows(pods)
        host.sh(f"rm {DROP_INS}/99-nvc.conf /etc/crio/99-nvc.conf.nvc-*; touch {DROP_INS}/10-own.conf")
        host.sh("systemctl restart crio")
        assert not crio_knows(pods)
        assert "systemctl reload crio" in host.sh(configure).stderr
        reload(host)
        assert crio_knows(pods)
        host.sh(f"{configure} --remove; rm -r {DROP_INS}")


def test_crio_with_the_hook(host: Host) -> None:
    """No runtime is named: the hook looks at each container's variables."""
    directory = "/etc/containers/oci/hooks.d"
    configure = f"nvc-cli runtime configure --engine crio --hook-dir {directory}"
    host.sh(configure)
    with Pods(host, "crio") as pods:
        pods.start("hooked", env={"NVIDIA_VISIBLE_DEVICES": "1", "NVC_VGPU_MEMORY": "6GiB"})
        assert nodes(pods, "hooked") == ["nvidia1"] and pods.exec("hooked", MEMORY).split() == ["6144"]
        pods.start("plain")
        assert nodes(pods, "plain") == []
    host.sh(f"{configure} --remove")
