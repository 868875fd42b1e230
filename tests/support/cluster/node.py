"""One node: its mounts, its containerd, its kubelet."""

from __future__ import annotations

import json
import os
import shlex
import subprocess

from .. import REPO, STAGE, cri, need, run, until
from ..cache import cache
from ..covered import uncover
from .binaries import crio_load
from .images import named
from .processes import make_group, tracked
from .state import CNI, CONTAINERD, CRIO, Node, State, write

SOCKETS = {CONTAINERD: "/run/containerd/containerd.sock", CRIO: "/run/crio/crio.sock"}
#: What a node has of its own: the path there, which is also the path below its directory.
PRIVATE = """etc/cdi etc/cni/net.d etc/containerd etc/containers etc/crio opt/cni/bin opt/nvc run/cdi run/containerd
run/containers run/crio run/netns run/nri srv var/lib/cni var/lib/containerd var/lib/containers var/lib/crio
var/lib/kubelet var/lib/nvc var/log/containers var/log/crio var/log/pods""".split()
#: The same, in memory as on any host.
MEMORY = ("run/nvc", "run/nvidia")
IMPORTS = 'imports = ["/etc/containerd/conf.d/*.toml"]\n'


def make(state: State, index: int) -> Node:
    """Make node number `index`: addresses, cgroup, mount namespace."""
    k = state.number
    name = f"node{index}"
    node = Node(
        name,
        f"{state.directory}/{name}",
        f"10.97.{k}.{index}",
        f"nvc-test-{k}-{index}",
        f"nvc{k}-{index}",
        f"10.98.{k}.{(index - 1) * 32}/27",
    )
    state.nodes[name] = node
    state.addresses.append(node.address)
    state.save()
    run(need("ip"), "addr", "add", f"{node.address}/32", "dev", "lo")
    make_group(node.cgroup)
    network(node)
    node.keeper = state.start(
        name, ["unshare", "-m", "--propagation", "private", "sh", "-ec", _mounts(state, node)], node
    )
    state.save()
    until(lambda: state.must_run(name) and os.path.exists(f"{node.directory}/mounted"))
    return node


def network(node: Node) -> None:
    """A bridge for pods, which reach one another and all addresses of the host."""
    ranges = {"type": "host-local", "ranges": [[{"subnet": node.subnet}]]}
    bridge = {"type": "bridge", "bridge": node.bridge, "isDefaultGateway": True, "ipam": ranges}
    document = {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}
    write(f"{node.directory}/etc/cni/net.d/10-bridge.conflist", json.dumps(document))


def _place(state: State, path: str) -> None:
    """Make the directory to mount on, and remember those that were made, to be removed in the end."""
    missing = []
    at = path
    while not os.path.isdir(at):
        missing.append(at)
        at = os.path.dirname(at)
    os.makedirs(path, exist_ok=True)
    state.made += missing


def _mounts(state: State, node: Node) -> str:
    """The script that makes the mounts of a node and stays. Its programs are the checkout's, wherever that lies."""
    own = shlex.quote(node.directory)
    lines = [uncover(REPO, STAGE, cache(), state.directory)]
    for name in PRIVATE:
        os.makedirs(f"{node.directory}/{name}", exist_ok=True)
        _place(state, f"/{name}")
        lines += [f"mount --rbind {own}/{name} /{name}", "uncover"]
    for name in MEMORY:
        _place(state, f"/{name}")
        lines += [f"mount -t tmpfs -o mode=755,nosuid,nodev tmpfs /{name}", "uncover"]
    if state.runtime == CRIO and tracked().endswith("/pids"):  # it takes /proc/cgroups for what is mounted
        with open("/proc/cgroups", encoding="ascii") as text:
            write(f"{node.directory}/cgroups", "".join(line for line in text if line.split()[1] != "0"))
        lines.append(f"mount --bind {own}/cgroups /proc/cgroups")
    lines += [f"mount --bind {CNI} /opt/cni/bin", "mount --make-rshared /"]
    # Without a controlling terminal or children, it ends when it is killed.
    return "\n".join([*lines, f"touch {own}/mounted", "exec sleep infinity"])


def containerd(state: State, node: Node) -> None:
    """Start containerd; the runtime is this machine's runc."""
    nri = f"[plugins.'io.containerd.nri.v1.nri']\n{cri.NRI_PATIENCE}\n"
    write(f"{node.directory}/etc/containerd/config.toml", cri.containerd(need("runc"), IMPORTS, nri))
    name = f"{node.name}-containerd"
    state.start(name, [state.program("containerd")], node)
    until(lambda: state.must_run(name) and os.path.exists(node.directory + SOCKETS[CONTAINERD]))


def crio(state: State, node: Node) -> None:
    """Start CRI-O; its runtime is this machine's runc, and conmon this machine's."""
    from ..generations import built  # which builds with what is in this package

    program = built("crio")
    paths = {"runc": need("runc"), "conmon": need("conmon"), "pinns": f"{os.path.dirname(program)}/pinns"}
    places = ("/var/log/crio/pods", "/var/lib/crio/clean.shutdown", "/opt/cni/bin")
    address, pause = f'stream_address = "{node.address}"', 'pause_command = "/bin/sleep infinity"'
    write(f"{node.directory}/etc/crio/crio.conf", cri.crio(paths, *places, api=address, image=pause))
    write(f"{node.directory}/etc/containers/storage.conf", cri.STORAGE)
    write(f"{node.directory}/etc/containers/policy.json", cri.POLICY)
    write(f"{node.directory}/etc/containers/registries.conf", "")
    name = f"{node.name}-crio"
    state.start(name, [program], node)
    until(lambda: state.must_run(name) and os.path.exists(node.directory + SOCKETS[CRIO]))


def runtime(state: State, node: Node) -> None:
    """Start the container runtime of the cluster."""
    (crio if state.runtime == CRIO else containerd)(state, node)


def kubelet(state: State, node: Node) -> None:
    """Start the kubelet, or start it again."""
    configuration = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "healthzBindAddress": node.address,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": f"unix://{SOCKETS[state.runtime]}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "maxPods": 29,
        "evictionHard": {"memory.available": "50Mi"},
        "imageGCHighThresholdPercent": 100,
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
    }
    path = f"{node.directory}/kubelet.json"
    write(path, json.dumps(configuration))
    words = [
        state.program("kubelet"),
        f"--config={path}",
        f"--kubeconfig={state.directory}/pki/system:node:{node.name}.conf",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
    ]
    state.start(f"{node.name}-kubelet", words, node)


def load(state: State, node: Node, archive: str) -> None:
    """Give a node the image of an OCI archive."""
    if state.runtime == CRIO:
        inside(state, node, [crio_load(), archive, named(archive)])
        return
    inside(state, node, [state.program("ctr"), "-n", "k8s.io", "images", "import", archive])


def inside(
    state: State, node: Node, words: list[str], check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a program in a node's mounts."""
    command = ["nsenter", "-m", "-t", str(node.keeper), "--wd=/", "--", *words]
    return run(*command, env=state.environment, check=check)


def remove(state: State, node: Node) -> None:
    """What a node leaves outside of its directory, once its processes have ended."""
    run(need("ip"), "link", "del", node.bridge, check=False)
