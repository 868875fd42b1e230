"""A slice for a plain program, and what a context takes: by the installed nvc-cli on the host itself."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support import CLEAN_ENV, GIB, MIB, PATIENCE, need, run
from support.configure import BASIC, Configure
from support.processes import in_child
from support.rootfs import LIBS

from nvc.kernel import LinuxKernel
from nvc.model.slices.entry import RegistryError, read_entry
from nvc.slices.make.run import _wait
from nvc.slices.store import registry

pytestmark = pytest.mark.usefixtures("shim")


@pytest.fixture
def sliced(launcher: str, driver: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program with a slice of the simulated driver, whose libraries it finds by LD_LIBRARY_PATH."""

    def start(*words: str, memory: str = "1g", **options: Any) -> subprocess.CompletedProcess[str]:
        env = {**CLEAN_ENV, "LD_LIBRARY_PATH": f"{driver}{LIBS}", **options.pop("env", {})}
        head = (f"--root={driver}", "vgpu", "run", f"--memory={memory}")
        return run(launcher, *head, *words, env=env, **options)

    return start


def entries(driver: str) -> list[str]:
    """Slices of programs that have this driver; others may run tests on this machine."""
    base, found = registry.base_directory(), []
    for name in registry.entry_names(base):
        try:
            if read_entry(f"{base}/{name}").libs_dir.startswith(driver):
                found.append(name)
        except RegistryError:
            continue  # it has gone meanwhile
    return found


def test_a_program_gets_a_slice(sliced: Any, driver: str, tool: str) -> None:
    done = sliced("--", tool, stdin=None, input="init\nprimary 0\ninfo\ntotal 0\nalloc a 1g\nalloc b 64m\n")
    answers = [line.split() for line in done.stdout.splitlines()]
    assert answers[2][2] == answers[3][1] == str(GIB)
    assert [answer[0] for answer in answers] == ["0", "0", "0", "0", "2", "0"]
    assert "/ 1024MiB" in sliced("--", f"{driver}/usr/bin/nvidia-smi").stdout


def test_nothing_of_it_is_seen_by_others(sliced: Any, driver: str) -> None:
    before = entries(driver), sorted(os.listdir(f"{driver}{LIBS}"))
    with open("/proc/self/mountinfo", encoding="utf-8") as lines:
        mounts = lines.read()
    inside = sliced("--", "ls", f"{driver}{LIBS}/nvc").stdout.split()
    assert inside == ["ledger", "quota", "real-libcuda.so.1", "real-libnvidia-ml.so.1"]
    assert (entries(driver), sorted(os.listdir(f"{driver}{LIBS}"))) == before
    with open("/proc/self/mountinfo", encoding="utf-8") as lines:
        assert lines.read() == mounts
    env = {**CLEAN_ENV, "LD_LIBRARY_PATH": f"{driver}{LIBS}"}
    assert "81559MiB" in run(f"{driver}/usr/bin/nvidia-smi", env=env).stdout


def test_the_callers_environment_directory_and_words(sliced: Any, scratch: str) -> None:
    shown = (
        'printf "%s|" "$FOO" "$PYTHONPATH" "$PWD" "$@"; env | grep -c NVC_CALLERS; ls /proc/self/fd | wc -l'
    )
    env = {"FOO": "a b\nc", "PYTHONPATH": "/hostile"}
    done = sliced("--", "sh", "-c", shown, "sh", "--memory", "-x", env=env, cwd=scratch, check=False)
    assert done.stdout.split("|") == ["a b\nc", "/hostile", scratch, "--memory", "-x", "0\n4\n"]


def test_options_end_where_the_program_begins(sliced: Any) -> None:
    """A program may have options of the same names; what is misspelt before it is not a program."""
    script = "import sys; print(sys.argv[1:])"
    done = sliced("python3", "-c", script, "--device=7", "--cores", "0", "--nonsense")
    assert done.stdout == "['--device=7', '--cores', '0', '--nonsense']\n"
    for words in (("--dry-run", "--", "true"), ("--coers=5", "true")):
        done = sliced(*words, check=False)
        assert done.returncode == 1 and f"unrecognized option '{words[0].partition('=')[0]}'" in done.stderr


def test_without_a_network(launcher: str, driver: str) -> None:
    """Nobody is asked for leave."""
    slice_ = (launcher, f"--root={driver}", "vgpu", "run", "--memory=1g", "--cores=50", "--")
    env = {**CLEAN_ENV, "LD_LIBRARY_PATH": f"{driver}{LIBS}"}
    script = f"cat /proc/net/dev | wc -l; {driver}/usr/bin/nvidia-smi"
    done = run(need("unshare"), "--net", *slice_, "sh", "-c", script, env=env)
    assert done.stdout.startswith("3\n") and done.stdout.count("1024MiB") == 2


def test_devices_that_are_not_asked_for(sliced: Any, driver: str, tool: str) -> None:
    """Hidden by CUDA's own variable, and without memory for who looks behind that."""
    env = {**CLEAN_ENV, "LD_LIBRARY_PATH": f"{driver}{LIBS}"}
    listed = run(f"{driver}/usr/bin/nvidia-smi", "-L", env=env).stdout
    uuids = [line.split("UUID: ")[1].rstrip(")") for line in listed.splitlines()]
    assert sliced("--device=1", "--", "printenv", "CUDA_VISIBLE_DEVICES").stdout.strip() == uuids[1]
    script = f"unset CUDA_VISIBLE_DEVICES; exec '{tool}'"
    done = sliced("--device=1", "--", "sh", "-c", script, stdin=None, input="init\nprimary 0\n")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["0", "2"]


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_exit_codes(sliced: Any, driver: str, script: str, code: int) -> None:
    assert sliced("--", "sh", "-c", script, check=False).returncode == code
    assert entries(driver) == []


@pytest.mark.parametrize(
    ("program", "code", "cause"),
    [
        ("", 127, "run: no such file or directory"),
        ("no-such-program", 127, "run: no-such-program: no such file or directory"),
        ("/etc/passwd", 126, "run: /etc/passwd: permission denied"),
    ],
)
def test_exit_codes_of_what_cannot_be_executed(
    sliced: Any, driver: str, program: str, code: int, cause: str
) -> None:
    """Those of env(1); doctor has nothing to say of it."""
    done = sliced("--", program, check=False)
    assert (done.returncode, entries(driver)) == (code, [])
    assert cause in done.stderr and done.stderr.endswith("[NVC-2105]\n")


def test_rights(sliced: Any) -> None:
    script = "id -u; id -g; id -G; grep NoNewPrivs /proc/self/status"
    done = sliced("--user=65534:65533", "--", "sh", "-c", script)
    assert done.stdout.split() == ["65534", "65533", "65533", "NoNewPrivs:", "1"]


def started(launcher: str, driver: str, script: str) -> subprocess.Popen[str]:
    """A slice whose program has begun: its first line is read."""
    words = [launcher, f"--root={driver}", "vgpu", "run", "--memory=1g", "--", "sh", "-c", script]
    pipe = subprocess.PIPE
    process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=CLEAN_ENV)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def test_signals_reach_the_program(launcher: str, driver: str) -> None:
    script = "trap 'echo caught; exit 3' TERM; echo ready; read line"
    process = started(launcher, driver, script)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None and process.stdout.readline() == "caught\n"
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 3


def test_it_ends_with_its_parent(launcher: str, driver: str) -> None:
    process = started(launcher, driver, "echo ready; exec sleep 600")
    process.kill()
    assert process.communicate(timeout=PATIENCE)[0] == ""  # nobody holds the pipe any more


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("--memory=90g", "--", "true"), "has 81559 MiB"),
        (("--device=9", "--", "true"), "unknown device"),
        (("--user=nobody-at-all", "--", "true"), "no such user or group"),
        ((), "Missing argument"),
    ],
)
def test_refused(sliced: Any, driver: str, words: tuple[str, ...], cause: str) -> None:
    done = sliced(*words, check=False)
    assert done.returncode == 1 and cause in done.stderr and entries(driver) == []


def test_the_shim_is_proved_where_programs_start(sliced: Any, launcher: str, driver: str) -> None:
    assert ": active" in sliced("--", launcher, "vgpu", "check").stdout
    env = {**CLEAN_ENV, "LD_LIBRARY_PATH": f"{driver}{LIBS}"}
    done = run(launcher, "vgpu", "check", env=env, check=False)
    assert done.returncode == 1 and "reached without the shim" in done.stdout
    assert ": not loaded (neither" in run(launcher, "vgpu", "check").stdout


def test_what_a_context_takes_is_measured_and_kept(
    launcher: str, sim_root: Callable[..., str], scratch: str
) -> None:
    """In a mount namespace with a /var/lib of its own."""
    root = sim_root(gpus=2, mig=("", "3g.40gb,2x2g.20gb"))
    script = f"""
        mount -t tmpfs tmpfs /var/lib
        '{launcher}' --root={root} vgpu calibrate --format=json > {scratch}/first
        '{launcher}' --root={root} vgpu calibrate --device 0 > {scratch}/second
        cp /var/lib/nvc/calibration {scratch}/kept
    """
    run(need("unshare"), "-m", "sh", "-ec", script)
    with open(f"{scratch}/first", encoding="utf-8") as file:
        measured = json.load(file)["measurements"]
    assert measured[0]["memory"] == 0 and len({one["memory"] for one in measured}) == 3
    assert all(one["context"] > 100 * MIB and one["driver"].endswith("-sim") for one in measured)
    with open(f"{scratch}/second", encoding="utf-8") as file:
        said = file.read()
    assert "(simulated)" in said and "518M" in said
    with open(f"{scratch}/kept", encoding="utf-8") as file:
        assert len(file.readlines()) == 3


def test_measurements_reach_the_plan(launcher: str, driver: str, runc_bundle: Any) -> None:
    with runc_bundle().created("runc") as container:
        command = [*Configure(launcher, driver).command, "configure", f"--pid={container.pid}", *BASIC]
        plan = [*command, "--vgpu-memory=10g", "--dry-run", "--format=json", container.bundle.rootfs]
        script = f"""
            mount -t tmpfs tmpfs /var/lib
            {shlex.join(plan)}
            '{launcher}' --root={driver} vgpu calibrate > /dev/null
            {shlex.join(plan)}
        """
        shown = run(need("unshare"), "-m", "sh", "-ec", script).stdout
    decoder, documents = json.JSONDecoder(), []
    while shown.strip():
        document, end = decoder.raw_decode(shown.lstrip())
        documents.append(document["slice"]["devices"][0])
        shown = shown.lstrip()[end:]
    before, after = documents
    assert (before["calibrated"], after["calibrated"]) == (False, True)
    assert after["contextOverhead"] == 518 * MIB < before["contextOverhead"]


def test_a_simulated_driver_is_found_without_a_variable(launcher: str, driver: str) -> None:
    """By the loader and by the shell, behind what the caller has: the user's own choice comes first."""
    head = (launcher, f"--root={driver}", "vgpu", "run", "--memory=2g", "--")
    spin = os.path.join(os.path.dirname(launcher), "nvc-spin")
    assert "1.00 of 2.00 GiB taken" in run(*head, spin, "--memory=1GiB", "--seconds=0.1").stdout
    assert run(*head, "nvidia-smi", "-L").stdout.startswith("GPU 0: ")
    env = {**CLEAN_ENV, "LD_LIBRARY_PATH": "/own"}
    shown = run(*head, "sh", "-c", 'echo "$LD_LIBRARY_PATH $PATH"', env=env).stdout.split()
    assert shown[0].startswith(f"/own:{driver}{LIBS}") and shown[1] == f"{env['PATH']}:{driver}/usr/bin"


def test_a_driver_that_was_replaced_meanwhile_is_found_again(sliced: Any, driver: str) -> None:
    """What an earlier run found of it is stale then."""
    sliced("--", "true")
    os.utime(f"{driver}{LIBS}/libcuda.so.580.159.04")
    shown = sliced("--", "sh", "-c", "grep SigIgn /proc/self/status").stdout
    # Neither those that the first try ignored, nor the caller's: the launcher begins with the defaults.
    assert int(shown.removeprefix("SigIgn:"), 16) == 0


def test_signals_that_another_thread_takes_reach_the_program() -> None:
    """The main thread is then in a system call that no signal ends, as by one that comes just before the call."""
    assert in_child(forwards) == "7"


def forwards() -> str:
    """The exit code of a program that ends after ten signals, each sent when it has got the one before."""
    bound = int(PATIENCE) // 6
    signal.alarm(bound)
    receive, tell = os.pipe()
    read, write = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    program = os.fork()
    if program == 0:
        os.close(write)
        signal.alarm(bound)
        for _ in range(10):
            signal.sigwait({signal.SIGUSR1})
            os.write(tell, b".")
        os._exit(7)
    os.close(write)

    def send() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        while not callable(signal.getsignal(signal.SIGUSR1)):
            os.sched_yield()
        for _ in range(10):
            os.kill(os.getpid(), signal.SIGUSR1)
            os.read(receive, 1)

    threading.Thread(target=send).start()
    return str(_wait(LinuxKernel(), program, read, lambda told: None))
