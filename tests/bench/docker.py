"""Times `docker run` of a one-line command with GPUs and without, on a dockerd of its own.

They alternate within one run, since times move between machines and hours. `make bench` runs this. With
`--generation newest`, Docker 29 starts containers with CDI devices, too: its `--gpus` then is the hook's, and
`--device nvidia.com/gpu=all` what `--gpus` does where dockerd finds nvidia-cdi-hook.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from functools import partial

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from support import generations
from support.engines import IMAGE, Host
from times import REST, in_turn, median, save, table, timed

#: Milliseconds that GPUs may add to a container's start, by generation of the engine.
TARGETS = {generations.DEBIAN: 60.0, generations.NEWEST: 15.0}
CONTENDERS = {
    "docker run": "",
    "docker run --gpus all": "--gpus all",
    "docker run --runtime nvc": "--runtime nvc",
    "docker run --runtime nvc, all GPUs": "--runtime nvc -e NVIDIA_VISIBLE_DEVICES=all",
}
CDI = {"docker run --device nvidia.com/gpu=all": "--device nvidia.com/gpu=all"}


def measure(host: Host, contenders: dict[str, str], runs: int, log: str) -> dict[str, list[float]]:
    """Milliseconds of each start, by contender."""
    docker = [*host.namespace, "/usr/bin/env", "docker", "run", "--rm", "--network", "none"]
    starts = {
        name: partial(timed, [*docker, *options.split(), IMAGE, "/bin/true"], log)
        for name, options in contenders.items()
    }
    return in_turn(starts, runs, REST)


def main() -> None:
    parser = argparse.ArgumentParser(description="Times `docker run` with GPUs and without.")
    parser.add_argument("--gpus", type=int, default=2, help="of the simulated driver (default 2)")
    parser.add_argument("--runs", type=int, default=20, help="of each contender (default 20)")
    parser.add_argument("--json", default="", metavar="FILE", help="write all times, in milliseconds")
    parser.add_argument(
        "--generation", choices=list(TARGETS), default=generations.DEBIAN, help="of Docker (default debian)"
    )
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="nvc-bench-")
    try:
        with Host(directory, options.generation) as host:
            host.simulate(gpus=options.gpus)
            host.sh("nvc-cli runtime configure --engine docker --hook-link /usr/local/bin")
            host.sh("systemctl start docker")
            host.image()
            contenders = CONTENDERS
            if options.generation != generations.DEBIAN:
                host.sh("nvc-cli --root /srv/sim cdi refresh")
                contenders = {**CONTENDERS, **CDI}
            times = measure(host, contenders, options.runs, os.path.join(directory, "log"))
    finally:
        shutil.rmtree(directory)
    table(times, "more", "docker run")
    more = median(times["docker run --gpus all"]) - median(times["docker run"])
    print(f"--gpus all takes {more:.1f} ms more; the target is at most {TARGETS[options.generation]:.0f} ms")
    save(times, options.json)


if __name__ == "__main__":
    main()
