"""nvcd's first words and its end, whatever comes and goes meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys

import pytest
from support import CLEAN_ENV, PATIENCE, run, until
from support.nvcd import PATHS, Place, ask, eventually

import nvc

#: nvcd, and in the same process a slice that comes and goes while the interpreter clears its modules: it has given
#: signals back to their defaults by then, and the registry is still watched.
LATE = """
import os, sys

class Slice:
    def __del__(self, mkdir=os.mkdir, rmdir=os.rmdir, base="/run/nvc/vgpu/"):
        mkdir(base + "late")
        rmdir(base + "late")
        mkdir(base + "../came-and-went")

sys.last = Slice()  # cleared after all other modules
sys.argv = ["nvcd"]
from nvc_cli.daemon import main
main()
"""


@pytest.fixture(autouse=True)
def _launched(place: Place) -> None:
    place.forks = False


def test_slices_that_go_with_it(place: Place) -> None:
    """Its clients end when it does, and their slices go: that must not end it by SIGIO."""
    place.program = (sys.executable, "-c", LATE)
    daemon = place.start(PYTHONPATH=":".join(PATHS))
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(timeout=PATIENCE) == 0, daemon.said()
    assert os.path.isdir(f"{place.run}/came-and-went"), "the slice was there, at the end of all"


def test_it_says_what_it_is(place: Place, driver: str) -> None:
    said = place.start(f"--root={driver}").said().splitlines()
    assert said[0].startswith(f"<6>nvcd: version {nvc.__version__}, driver 5")
    assert f" in {driver}, 0 slices, " in said[0]
    assert said[0].endswith("socket /run/nvc/nvcd/nvcd.sock")
    assert said[1].startswith("<6>nvcd: configuration defaults: policy automatic, on-bypass report")
    assert len(said) == 2


def test_foreign_values_that_it_does_not_use(place: Place, driver: str, scratch: str) -> None:
    """NVIDIA's file may have what only others understand: nvcd says so and runs."""
    path = os.path.join(scratch, "config.toml")
    with open(path, "w", encoding="utf-8") as out:
        out.write(
            f'[nvidia-container-cli]\nroot = "{driver}"\nload-kmods = "later"\n'
            '[nvidia-container-runtime]\nmode = "of tomorrow"\n'
            '[nvidia-container-runtime.modes.legacy]\ncuda-compat-mode = ""\n'
        )
    said = place.start(f"--config={path}").said().splitlines()
    assert f"driver 580.159.04-sim in {driver}" in said[0] and f"configuration {path}: " in said[1]
    wanted = ("load-kmods: want true or false", "mode: want one of auto, legacy, hook, csv, cdi, jit-cdi")
    for line, cause in zip(said[2:], wanted, strict=True):
        assert line.startswith(f"<4>nvcd: {path}: [nvidia-container-") and cause in line
        assert line.endswith("; what uses it does not start")


def test_it_waits_for_its_predecessor(place: Place) -> None:
    """As in a rolling update: it serves as soon as that one has ended, even if killed."""
    first = place.start()
    second = place.begin("--wait")
    until(lambda: f"waits until the nvcd of process {first.pid} has ended" in second.said())
    assert not second.is_ready()
    first.kill()
    second.wait().end()


def test_it_is_found_by_its_name(place: Place, driver: str) -> None:
    """And its helpers by theirs; its words are those that somebody wrote."""
    daemon = place.start(f"--root={driver}")
    eventually(place, lambda s: s["nvml"]["answers"])
    assert ask(place)["pid"] == daemon.pid
    for words in (("pgrep", "-x"), ("pidof",), ("ps", "-o", "pid=", "-C")):
        assert str(daemon.pid) in run(*words, "nvcd").stdout.split(), words
    assert run("ps", "-o", "args=", "-p", str(daemon.pid)).stdout == f"nvcd --root={driver}\n"
    helpers = [run("ps", "-o", "comm=,args=", "-p", str(pid)).stdout.split() for pid in daemon.family()[1:]]
    assert sorted(helpers) == [[name] * 2 for name in ("nvcd-hook", "nvcd-nvml", "nvcd-time", "nvcd-watch")]


def test_somebody_else_ends_it(place: Place) -> None:
    """Without systemd: its log has no levels either, which are for the journal."""
    nvcd = place.program
    with subprocess.Popen(place.enter(*nvcd), stderr=subprocess.PIPE, text=True, env=CLEAN_ENV) as daemon:
        assert daemon.stderr is not None
        lines = [daemon.stderr.readline() for _ in range(3)]
        assert all(line.startswith("nvcd: ") for line in lines) and lines[1].startswith("nvcd: version ")
        second = run(*place.enter(*nvcd), check=False)
        cause = f"another nvcd listens there (process {daemon.pid}); end it first: `nvcd --stop`"
        assert second.returncode == 1 and cause in second.stderr
        assert second.stderr.endswith("[NVC-1201: nvc-cli doctor vgpu.daemon]\n")
        assert run(*place.enter(*nvcd, "--stop")).stderr == f"nvcd: process {daemon.pid} has ended\n"
        assert daemon.poll() == 0, "it waited for that"
    for option, step in (("--stop", "stop"), ("--state", "ask")):
        done = run(*place.enter(*nvcd, option), check=False)
        assert done.returncode == 1
        assert f"{step} nvcd: /run/nvc/nvcd/nvcd.sock: nvcd is not running" in done.stderr
        assert done.stderr.endswith("[NVC-1201: nvc-cli doctor vgpu.daemon]\n")


def test_its_terminal_goes(place: Place, driver: str) -> None:
    """As of `nvcd &` in a shell that is left: SIGHUP comes, and what it logs has nowhere to go."""
    terminal, side = os.openpty()
    words = ("setsid", "--ctty", *place.enter(*place.program, f"--root={driver}"))
    with subprocess.Popen(words, stdin=side, stdout=side, stderr=side, env=CLEAN_ENV) as daemon:
        os.close(side)
        with open(terminal, encoding="utf-8") as said:
            assert "version" in said.readline()
            eventually(place, lambda s: s["nvml"]["answers"])
        shutil.rmtree(f"{place.run}/nvcd")
        until(lambda: daemon.poll() is not None or os.path.exists(f"{place.run}/nvcd/nvcd.sock"))
        assert daemon.poll() is None
        state = ask(place)
        assert state["pid"] == daemon.pid and not state["nvml"]["failures"], "its helpers live too"
        run(*place.enter(*place.program, "--stop"))
        assert daemon.wait(timeout=PATIENCE) == 0


def test_its_directory_is_removed_while_it_runs(place: Place) -> None:
    """It makes that again, and sees the slices that come after that."""
    daemon = place.start()
    place.tenant()
    run("sh", "-c", f"rm -rf {place.run}/[!b]*")
    until(lambda: os.path.exists(f"{place.run}/nvcd/nvcd.sock"))
    assert ask(place)["pid"] == daemon.pid and "making again what was removed: " in daemon.said()
    other = place.tenant()
    eventually(place, lambda s: [one["key"] for one in s["slices"]] == [other.key])
    assert "[Errno " not in daemon.said()


@pytest.mark.parametrize("name", ["vgpu", "vgpu-policy"])
def test_another_directory_takes_the_place_of_one_that_it_watches(place: Place, name: str) -> None:
    """As a command makes it again at once: the kernel tells of changes there, and not of the old one."""
    daemon = place.start()
    os.rename(f"{place.run}/{name}", f"{place.run}/old")
    os.mkdir(f"{place.run}/{name}", 0o700)

    def watches(path: str) -> bool:
        """Whether it has that directory open."""
        fds = (f"/proc/{daemon.pid}/fd/{fd}" for fd in os.listdir(f"/proc/{daemon.pid}/fd"))
        return path in {os.path.realpath(fd) for fd in fds}

    until(lambda: watches(f"/run/nvc/{name}"))
    assert not watches("/run/nvc/old")
    assert f"making again what was removed: /run/nvc/{name}\n" in daemon.said()


def test_its_directory_cannot_be_made_again(place: Place) -> None:
    """Then it ends and says why: whoever looks after it starts it anew."""
    daemon = place.start()
    daemon.process.send_signal(signal.SIGSTOP)
    run("sh", "-c", f"rm -rf {place.run}/[!b]*; touch {place.run}/nvcd")
    daemon.process.send_signal(signal.SIGCONT)
    assert daemon.process.wait(timeout=PATIENCE) == 1
    assert "/run/nvc/nvcd: not a directory of this user alone" in daemon.said().splitlines()[-1]


def test_a_socket_of_systemd_whose_name_is_gone(place: Place) -> None:
    """Nobody finds it any more: nvcd makes one."""
    path, name = f"{place.run}/nvcd/nvcd.sock", "/run/nvc/nvcd/nvcd.sock"
    words = ["--fdname=control", "-l", name, *place.program]
    command = place.enter("systemd-socket-activate", *words)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None and "Listening" in process.stderr.readline()
        kept = os.open(path, os.O_PATH)
        os.unlink(path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as first:
            first.connect(f"/proc/self/fd/{kept}")
        os.close(kept)
        until(lambda: os.path.exists(path))
        assert ask(place, "alive")["version"]
        process.terminate()
        assert process.wait(timeout=PATIENCE) == 0
