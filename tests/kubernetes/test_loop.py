"""Pods with slices come and go while workers of the plugin and nvcd are killed at random: nothing is left of any
and none waits for long. NVC_PODS says how many; `make test-kubernetes PODS=200` is the whole of it, where none may
wait for 30 s. Without it the machine may be busy; none may need the kubelet's second attempt, after 60 to 90 s."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time

from support import until
from support.cluster import Cluster
from support.cluster.pods import Space, left, pod, template, until_nothing_is_left
from support.cluster.processes import end, members, started

PODS = int(os.environ.get("NVC_PODS", "24"))
#: Pods that are there at once, and seconds that none of them may take to run or to go.
AT_ONCE, PATIENCE = 8, 30.0 if "NVC_PODS" in os.environ else 60.0
#: A program's words in its command line, and those that it must have beside them.
PROGRAMS = {"plugin": (r'main\("nvc-kubelet-plugin"\)', "--worker="), "nvcd": (r"^nvcd\b", "")}
#: Seconds between two kills, at most.
PAUSE = 3.0
#: It has its slice, and another pod's memory is not its own.
SCRIPT = "nvidia-smi | grep -q '/ 1024MiB' && nvc-spin -m 256MiB -s 1 && echo well; exec sleep infinity"


def of(cluster: Cluster, name: str) -> dict[int, int]:
    """The processes of a program on all nodes, without the helpers that they have forked: pid, start time."""
    found, parents = {}, {}
    for node in cluster.state.nodes.values():
        for pid in members(node.cgroup):
            try:
                with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as text:
                    words = text.read()
                with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as text:
                    parents[pid] = int(text.read().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            if re.search(PROGRAMS[name][0], words) and PROGRAMS[name][1] in words:
                found[pid] = started(pid)
    return {pid: when for pid, when in found.items() if parents[pid] not in found}


class Killer(threading.Thread):
    """Kills a worker or an nvcd now and then. nvcd's container is started again by the kubelet, after longer and
    longer pauses; so it is killed a few times only."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self.cluster = cluster
        self.chance = chance
        self.killed = {"plugin": 0, "nvcd": 0}
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(self.chance.uniform(0.2, PAUSE)):
            name = "nvcd" if self.killed["nvcd"] < 3 and self.chance.random() < 0.2 else "plugin"
            there = of(self.cluster, name)
            if there:
                pid = self.chance.choice(sorted(there))
                end({pid: there[pid]}, signal.SIGKILL)
                self.killed[name] += 1


def mounts(cluster: Cluster) -> list[str]:
    """Ledgers that are mounted on any node."""
    found = []
    for name in cluster.state.nodes:
        text = cluster.inside(name, "cat", "/proc/mounts").stdout
        found += [line.split()[1] for line in text.splitlines() if line.startswith("nvc-ledger ")]
    return found


def test_pods_come_and_go_while_nvc_is_killed(nvc: Cluster, space: Space) -> None:
    """From its making to its script's last word, and from its deletion until it is gone, each pod is watched."""
    chance = random.Random(PODS)
    space.apply(template("one", {"memory": "1Gi", "cores": "5"}))
    born: dict[str, float] = {}  # when the pods were made that do not run yet
    dying: dict[str, float] = {}
    running: list[str] = []
    took: dict[str, list[float]] = {"start": [], "end": []}
    made = 0
    killer = Killer(nvc, chance)
    killer.start()

    def look() -> bool:
        """Make, delete and note; whether all is over."""
        nonlocal made
        now = time.monotonic()
        there = {one["metadata"]["name"]: one for one in space.get("pods")["items"]}
        for name in [name for name in dying if name not in there]:
            took["end"].append(now - dying.pop(name))
        for name in [name for name in born if there[name]["status"].get("phase") == "Running"]:
            took["start"].append(now - born.pop(name))
            running.append(name)
        late = [name for names in (born, dying) for name, at in names.items() if now - at > PATIENCE]
        assert not late, f"{late} after {killer.killed}: {[space.said(name) for name in late]}"
        gone = [running.pop(chance.randrange(len(running))) for _ in range(len(running) // 2 or len(running))]
        if gone:
            for name in gone:
                until(lambda name=name: "well" in space.said(name), lambda name=name: space.said(name))  # type: ignore[misc]
            space.kubectl("delete", "pod", *gone, "--wait=false")
            dying.update((name, time.monotonic()) for name in gone)
        count = min(PODS - made, AT_ONCE - len(born) - len(running) - len(dying))
        if count > 0:
            names = [f"p{made + number}" for number in range(count)]
            made += count
            space.apply(*(pod(name, SCRIPT, {"gpu": "one"}) for name in names))
            born.update((name, time.monotonic()) for name in names)
        return made == PODS and not born and not dying and not running

    try:
        while not look():
            killer.over.wait(0.2)
    finally:
        killer.over.set()
        killer.join()
        for what, seconds in took.items():
            if seconds:
                print(f"{what}: {len(seconds)} pods, median {sorted(seconds)[len(seconds) // 2]:.1f} s, "
                      f"longest {max(seconds):.1f} s; killed: {killer.killed}")  # fmt: skip
    assert len(took["end"]) == PODS and killer.killed["plugin"] > 0
    until(lambda: len(of(nvc, "plugin")) == len(nvc.state.nodes))
    until_nothing_is_left(nvc)
    assert not left(nvc) and not mounts(nvc)
