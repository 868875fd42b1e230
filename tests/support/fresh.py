"""A machine that has just started, as far as programs can tell: `make test-fresh`.

    python3 tests/support/fresh.py [--rounds 3] [--built] [COMMAND...]

Each round starts a container of this host's root, clones HEAD into it under a path with a space, and runs there the
commands that README.md begins with, or each COMMAND. In the last of several rounds each processor has a busy loop.
The last lines say how long everything took. `make test-elsewhere` is one round of the tests that depend on clocks
and places, with --built.

The container has namespaces of its own for mounts, processes, IPC, names and cgroups, and clocks that say a minute
of uptime. Its changes to the root are a layer that goes with it; /run, /tmp, /var/tmp, /srv, /home, the engines'
storage and root's caches are empty, apart from this checkout, read-only at its own place, and with --built what
tests have fetched and built. It has the host's network, devices and kernel settings.

It ends with this program, however that ends. What a killed one leaves on the host (its layer, its cgroups,
addresses and bridges of clusters) is removed by the next one.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import glob
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from support import REPO, need, run, until
from support.cache import cache

#: Seconds for which the container's kernel claims to run when it starts.
UPTIME = 60
#: The commands run in a checkout here: hosts and nodes of tests cover /srv, and the shell splits at spaces.
CLONE = "/srv/some place/nvc"
#: Lines of output that say how tests ended.
CLOSING = re.compile(r"fresh: |\d+ (passed|failed|error).* in |(FAILED|ERROR) |.*\*\*\* ")
CGROUPS = "/sys/fs/cgroup"
PLACES = "/var/tmp"
#: What a run makes on the host is called by its process: id, and when that began.
NAME = re.compile(r"nvc-fresh-(\d+)-(\d+)")
#: What a cluster of tests says of itself, below the container's files (tests/support/cluster/state.py).
CLUSTERS = "disk/var/tmp/*/state.json"
PR_SET_PDEATHSIG = 1  # prctl(2)
#: Empty, and on the disk itself: an overlay takes no other overlay as the layer that it writes.
EMPTY = "tmp var/tmp srv home var/lib/docker var/lib/containers var/lib/containerd root/.cache"

#: The first process of the namespaces. Standard input is the caller's socket.
START = """
set -e
echo started >&0
read -r answer
exec </dev/null
place=$1 root=$1/root
shift
mkdir "$place/upper" "$place/work" "$root"
mount -t overlay -o "lowerdir=/,upperdir=$place/upper,workdir=$place/work" overlay "$root"
for name in %(empty)s; do
    mkdir -p "$place/disk/$name" "$root/$name"
    mount --bind "$place/disk/$name" "$root/$name"
done
chmod 1777 "$root/tmp" "$root/var/tmp"
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
mount -t sysfs -o nosuid,nodev,noexec sysfs "$root/sys"
mount --rbind /dev "$root/dev"
mount -t devpts -o newinstance,mode=620,ptmxmode=666 devpts "$root/dev/pts"
mount --bind "$root/dev/pts/ptmx" "$root/dev/ptmx"
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=755,nosuid,nodev tmpfs "$root/run"
mkdir "$root/run/lock"
show() {
    mkdir -p "$root$1"
    mount --rbind "$1" "$root$1"
}
for name in %(shown)s; do
    show "$name"
done
# The layer has what no other mount of the host covers.
for name in %(fixed)s; do
    [ "$(ls -A "$root$name" 2>/dev/null)" ] || { show "$name" && mount -o remount,bind,ro "$root$name"; }
done
# The host's hierarchies of cgroups, at the same places: this group is the root of each.
findmnt -rn -R -o TARGET,FSTYPE,FS-OPTIONS %(cgroups)s | while read -r at kind options; do
    case $kind in
    tmpfs)
        mount -t tmpfs -o mode=755 tmpfs "$root$at"
        find "$at" -maxdepth 1 -type l -exec cp -P '{}' "$root$at" ';' ;;
    cgroup)
        mkdir "$root$at"
        options=$(echo "$options" | tr , '\\n' | grep -vxE 'rw|xattr|clone_children' | sed 's/^name=/none,&/')
        mount -t cgroup -o "$(echo "$options" | paste -sd ,)" cgroup "$root$at" ;;
    cgroup2)
        mkdir -p "$root$at"
        mount -t cgroup2 cgroup2 "$root$at" ;;
    esac
done
hostname fresh
cd "$root"
pivot_root . mnt
exec chroot . /bin/sh -ec '
    umount -l /mnt
    # A group of version 2 gives controllers to the groups below only while no process is in it.
    if [ -s %(cgroups)s/cgroup.controllers ]; then
        mkdir %(cgroups)s/init
        echo $$ >%(cgroups)s/init/cgroup.procs
        sed "s/[^ ]*/+&/g" %(cgroups)s/cgroup.controllers >%(cgroups)s/cgroup.subtree_control
    fi
    "$@" || exit $? # process 1 stays a shell, which waits for orphans
' sh "$@"
"""


def _hierarchies() -> list[str]:
    """Where this host has its cgroups."""
    lines = run(need("findmnt"), "-rn", "-R", "-o", "FSTYPE,TARGET", CGROUPS).stdout.splitlines()
    return [line.split()[1] for line in lines if line.startswith("cgroup")]


def _enter(groups: list[str], pid: int) -> None:
    for group in groups:
        with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as file:
            file.write(str(pid))


def _began(pid: int | str) -> int:
    """When a process began, in clock ticks; 0 if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as text:
            return int(text.read().rsplit(")", 1)[1].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def own_name() -> str:
    """What this process's directory and cgroups are called."""
    return f"nvc-fresh-{os.getpid()}-{_began('self')}"


def remove_leftovers() -> None:
    """Remove what runs have left that were killed."""

    def left(paths: list[str]) -> list[str]:
        names = [(path, NAME.fullmatch(os.path.basename(path))) for path in paths]
        return [path for path, name in names if name and _began(name[1]) != int(name[2])]

    for root in _hierarchies():
        for group in left(glob.glob(f"{root}/nvc-fresh-*")):
            _remove_group(group)
    for place in left(glob.glob(f"{PLACES}/nvc-fresh-*")):
        remove_place(place)


def remove_place(place: str) -> None:
    """Remove the files of a container that has ended, and what clusters in it have left in the host's network."""
    for path in glob.glob(f"{place}/{CLUSTERS}"):
        with open(path, encoding="utf-8") as text:
            state = json.load(text)
        for address in state["addresses"]:
            run(need("ip"), "addr", "del", f"{address}/32", "dev", "lo", check=False)
        for node in state["nodes"].values():
            run(need("ip"), "link", "del", node["bridge"], check=False)
    shutil.rmtree(place)


def _remove_group(group: str) -> None:
    """Kill what is in a cgroup, wait for its end, and remove the cgroup."""

    def removed() -> bool:
        for directory, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(FileNotFoundError, OSError):
                with open(os.path.join(directory, "cgroup.procs"), encoding="ascii") as text:
                    for pid in map(int, text.read().split()):
                        os.kill(pid, signal.SIGKILL)
                os.rmdir(directory)
        return not os.path.exists(group)

    until(removed, lambda: f"{group} is busy")


@contextlib.contextmanager
def _group() -> Iterator[tuple[list[str], list[str]]]:
    """The roots of all hierarchies of cgroups, and a new group below each."""
    roots = _hierarchies()
    groups = [os.path.join(root, own_name()) for root in roots]
    try:
        for root, group in zip(roots, groups, strict=True):
            os.mkdir(group)
            if os.path.basename(root) == "cpuset":  # in version 1 a new group has no processor
                for name in ("cpuset.cpus", "cpuset.mems"):
                    shutil.copyfile(os.path.join(root, name), os.path.join(group, name))
        yield roots, groups
    finally:
        for group in groups:
            if os.path.exists(group):
                _remove_group(group)


def _uptime() -> float:
    with open("/proc/uptime", encoding="ascii") as file:
        return float(file.read().split()[0])


def _offset() -> int:
    """Seconds that the clock of this time namespace is ahead of the kernel's own, to which others are relative."""
    with open("/proc/self/timens_offsets", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("boottime"))


def of_checkout() -> list[str]:
    """What this program needs in a container: this checkout, its history, its interpreter."""
    history = run(need("git"), "-C", REPO, "rev-parse", "--path-format=absolute", "--git-common-dir").stdout
    return [
        REPO,
        history.removesuffix("\n"),
        os.path.realpath(sys.prefix),
        os.path.realpath(sys.base_prefix),
    ]


def run_in_container(
    place: str, *argv: str, fixed: Sequence[str] = (), shown: Sequence[str] = ()
) -> tuple[int, list[str]]:
    """Run a program in a new container, whose files are in the empty directory `place`.

    It has the host's directories `shown`, and `fixed`, which it cannot change. Returns its exit status, and what it
    printed that sums up: the rest was shown.
    """
    names = {"empty": EMPTY, "cgroups": CGROUPS, "fixed": shlex.join(fixed), "shown": shlex.join(shown)}
    offset = str(_offset() + UPTIME - int(_uptime()))
    namespaces = ("--mount", "--propagation=private", "--pid", "--ipc", "--uts", "--cgroup", "--time")
    clocks = (f"--monotonic={offset}", f"--boottime={offset}")
    words = [need("unshare"), "--fork", "--kill-child", *namespaces, *clocks]
    ours, theirs = socket.socketpair()
    libc = ctypes.CDLL(None)

    def begin() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        _enter(groups, os.getpid())

    with ours, _group() as (roots, groups):
        with theirs:
            unshare = subprocess.Popen(
                [*words, "/bin/sh", "-c", START % names, "sh", place, *argv],
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                preexec_fn=begin,
            )
        assert unshare.stdout is not None
        closing = []
        try:
            if ours.recv(16):
                _enter(roots, unshare.pid)  # what waits outside is no process of the container
                ours.send(b"\n")
            with unshare.stdout as said:
                for line in said:
                    print(line, end="", flush=True)
                    if CLOSING.match(line):
                        closing.append(line)
            return unshare.wait(), closing
        finally:
            unshare.kill()
            unshare.wait()


def commands(checkout: str) -> list[str]:
    """What README.md has in its first block."""
    with open(os.path.join(checkout, "README.md"), encoding="utf-8") as file:
        block = re.search(r"\n\n((?: {4}.*\n)+)", file.read())
    assert block is not None, "README.md begins with no commands"
    return [line.partition("#")[0].strip() for line in block[1].splitlines()]


def inside(repository: str, commit: str, loops: int, wanted: list[str]) -> int:
    """Clone the commit, and run the commands there beside this many busy loops; 0 when all succeed."""
    git, clone = need("git"), CLONE
    while os.path.exists(clone):
        clone += " again"  # where this checkout itself is
    run(git, "clone", "-q", "--no-checkout", repository, clone, timeout=600)
    run(git, "-C", clone, "checkout", "-q", "--detach", commit)
    busy = [subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"]) for _ in range(loops)]
    print(f"fresh: up for {_uptime()} s, {loops} busy loops", flush=True)
    failed = False
    for command in wanted or commands(clone):
        began = time.monotonic()
        status = subprocess.run(["/bin/sh", "-c", command], cwd=clone).returncode
        about = textwrap.shorten(command, 60, placeholder=" ...")
        print(f"fresh: {about}: exit {status} after {time.monotonic() - began:.0f} s", flush=True)
        failed |= status != 0
    for loop in busy:
        loop.kill()
    return int(failed)


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--built", action="store_true", help="with the cache of what tests fetch and build")
    parser.add_argument("--inside", nargs=2, metavar=("COMMIT", "LOOPS"), help=argparse.SUPPRESS)
    parser.add_argument("command", nargs="*")
    options = parser.parse_args()
    if options.inside:
        commit, loops = options.inside
        return inside(REPO, commit, int(loops), options.command)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("fresh: ended by SIGTERM"))  # through what cleans up
    remove_leftovers()
    commit = run(need("git"), "-C", REPO, "rev-parse", "HEAD").stdout.strip()
    shown = []
    if options.built:
        shown = [os.environ.setdefault("NVC_TESTS_CACHE", os.path.abspath(cache()))]
        os.makedirs(cache(), exist_ok=True)
    failed = 0
    summary = []
    for number in range(1, options.rounds + 1):
        summary.append(f"round {number} of {options.rounds}, commit {commit[:12]}\n")
        loops = len(os.sched_getaffinity(0)) if number == options.rounds > 1 else 0
        place = os.path.join(PLACES, own_name())
        os.mkdir(place, mode=0o700)
        try:
            words = ["--inside", commit, str(loops), "--", *options.command]
            program = (sys.executable, os.path.abspath(__file__), *words)
            status, closing = run_in_container(place, *program, fixed=of_checkout(), shown=shown)
        finally:
            remove_place(place)
        summary += closing
        failed += status != 0
    print(f"== closing lines\n{''.join(summary)}{options.rounds - failed} of {options.rounds} rounds passed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
