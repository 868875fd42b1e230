"""A cluster from a shell, for whoever wants to look at one.

build               build all programs that tests/kubernetes runs, before tests with their time limits begin
up DIR [--nodes N]  start it; prints the KUBECONFIG
load DIR ARCHIVE    give every node the images of an OCI archive
exec DIR NODE ...   run a program in a node's mounts: its sockets and /etc/cdi at their usual paths
down DIR            end it, and remove DIR
"""

from __future__ import annotations

import argparse
import functools
import subprocess
import sys

from ..generations import built
from . import Cluster, programs
from .binaries import crio_load, promql


def build() -> None:
    """Whatever is in the cache already takes no time."""
    for make in (programs, promql, crio_load, functools.partial(built, "crio")):
        make()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="cluster", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    calls = parser.add_subparsers(dest="call", required=True)
    calls.add_parser("build")
    for call in ("up", "load", "exec", "down"):
        one = calls.add_parser(call)
        one.add_argument("directory")
        if call == "up":
            one.add_argument("--nodes", type=int, default=1, choices=range(1, 9))
        if call in ("load", "exec"):
            one.add_argument("words", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if given.call == "build":
        build()
        return
    if given.call == "up":
        cluster = Cluster(given.directory, given.nodes)
        cluster.up()
        print(f"export KUBECONFIG={cluster.kubeconfig} PATH={cluster.state.programs}:$PATH")
        return
    try:
        cluster = Cluster.running(given.directory)
    except FileNotFoundError:
        sys.exit(f"cluster: no cluster at {given.directory}")
    if given.call == "load":
        cluster.load(given.words[0])
    elif given.call == "exec":
        keeper = cluster.state.nodes[given.words[0]].keeper
        command = ["nsenter", "-m", "-t", str(keeper), "--wd=/", "--", *given.words[1:]]
        sys.exit(subprocess.run(command, env=cluster.state.environment, check=False).returncode)
    else:
        cluster.down()


if __name__ == "__main__":
    main()
