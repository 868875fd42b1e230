"""nvc-spin on a simulated driver: memory, steps, pauses, how it ends, and what it says where a call fails."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable

import pytest
from support import CLEAN_ENV, PATIENCE, REPO, need, run
from support.builds import kept
from support.simdriver import WARN, environment

SUMMARY = re.compile(r"^(\d+) steps in (\d+\.\d) s: +(\d+\.\d) steps/s +(\d+\.\d)% of the GPU's time$")
SECOND = re.compile(r"^ +(\d+) s +(\d+\.\d) steps/s +(\d+\.\d)% of the GPU's time$")
OF_100_GIB = "cuMemAlloc_v2 of 100.00 GiB, with 78.60 of 79.11 GiB free"
HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def spin(stage: str) -> str:
    return os.path.join(stage, "bin/nvc-spin")


@pytest.fixture
def env(sim_root: Callable[..., str]) -> dict[str, str]:
    root = sim_root(gpus=2)
    return environment(root, ROOT=root)


def summary(text: str) -> tuple[int, float]:
    """Steps and seconds of the last line."""
    found = SUMMARY.match(text.splitlines()[-1])
    assert found, text
    return int(found[1]), float(found[2])


def test_steps_take_the_time_that_they_say(spin: str, env: dict[str, str]) -> None:
    """No GPU does more of them than fit; and it does some."""
    done = run(spin, "--kernel", "2ms", "--seconds", "1.2", env=env)
    head, *seconds, _ = done.stdout.splitlines()
    assert head == "NVIDIA H100 80GB HBM3 (simulated): 0.00 of 79.11 GiB taken"
    assert len(seconds) <= 1 and all(SECOND.match(line) for line in seconds), seconds
    steps, took = summary(done.stdout)
    assert 10 < steps <= (took + 0.05) / 0.002 and took >= 1.2


def test_half_the_load_leaves_pauses(spin: str, env: dict[str, str]) -> None:
    """At most one step each 10 ms, and what a late host may make up for."""
    steps, took = summary(run(spin, "--load=10%", "--seconds=1", env=env).stdout)
    assert 2 < steps <= (took + 0.15) / 0.01 + 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_memory_is_held_until_it_is_interrupted(spin: str, env: dict[str, str], number: int) -> None:
    smi = (
        f"{env['ROOT']}/usr/bin/nvidia-smi",
        "-i",
        "1",
        "--query-gpu=memory.used",
        "--format=csv,noheader",
    )
    process = subprocess.Popen([spin, "-m1GiB", "-d1"], stdout=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    assert "1.00 of" in process.stdout.readline() and SECOND.match(process.stdout.readline())
    assert int(run(*smi, env=env).stdout.split()[0]) >= 1024 + 518
    for _ in range(2):  # a shell sends it to `vgpu run` too, which hands it on
        process.send_signal(number)
    output = process.communicate(timeout=PATIENCE)[0]
    assert process.returncode == 0 and summary(output)[0] > 0
    assert int(run(*smi, env=env).stdout.split()[0]) < 518


def test_a_part_of_the_memory(spin: str, env: dict[str, str]) -> None:
    assert "39.55 of 79.11 GiB taken" in run(spin, "--memory=50%", "--seconds=0.1", env=env).stdout


@pytest.mark.parametrize(
    ("words", "more", "said"),
    [
        (("--memory=100GiB",), {}, f"{OF_100_GIB}: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"),
        (("--device=2",), {}, "cuDeviceGet: CUDA_ERROR_INVALID_DEVICE (101): invalid device ordinal"),
        ((), HIDDEN, "cuInit: CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected"),
        ((), {"LD_LIBRARY_PATH": ""}, "libcuda.so.1: cannot open shared object file: No such file or directory"),
    ],
)  # fmt: skip
def test_a_call_that_fails(
    spin: str, env: dict[str, str], words: tuple[str, ...], more: dict[str, str], said: str
) -> None:
    done = run(spin, *words, env={**env, **more}, check=False)
    assert done.returncode == 1 and done.stderr.splitlines()[0] == f"nvc-spin: {said}"
    assert all(len(line) <= 80 for line in done.stderr.splitlines()[1:])


def test_what_is_no_value(spin: str) -> None:
    for word in (
        "--memory=10GB", "--memory=4096", "--memory=0", "--memory=1.5GiB", "--memory=101%", "--memory=-1GiB",
        "--memory=99999999999999999999", "--kernel=1", "--kernel=0ms", "--kernel=11s", "--kernel=-1ms",
        "--load=0", "--load=101%", "--seconds=0", "--seconds=nan", "--seconds=inf", "--device=-1", "--device=0x1",
    ):  # fmt: skip
        name, _, value = word.partition("=")
        done = run(spin, word, "--seconds=0.1", env=CLEAN_ENV, check=False)
        assert done.returncode == 2 and done.stderr.startswith(f"nvc-spin: {name}: {value}: want "), done.stderr
        assert done.stdout == ""


def test_what_is_no_option(spin: str, env: dict[str, str]) -> None:
    for word in ("--memry=1GiB", "1GiB"):
        done = run(spin, word, env=env, check=False)
        assert done.returncode == 2 and done.stderr.endswith("--help lists the options\n")
    assert all(len(line) <= 80 for line in run(spin, "--help").stdout.splitlines())


def build(directory: str) -> str:
    """A libcuda that hides what twice the work takes."""
    source = os.path.join(REPO, "tests/native/busy_cuda.c")
    run(need("gcc"), *WARN, "-shared", "-fPIC", "-o", f"{directory}/libcuda.so.1", source)
    return directory


@pytest.fixture
def busy(spin: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """nvc-spin for a moment, with steps of 1 ms, on a busy machine."""
    libraries = kept("busy_cuda", build)

    def go(**variables: str) -> subprocess.CompletedProcess[str]:
        env = {**CLEAN_ENV, "LD_LIBRARY_PATH": libraries, **variables}
        return run(spin, "--kernel=1ms", "--seconds=0.01", env=env, check=False)

    return go


@pytest.mark.parametrize("times", ["0", "1", "60"])
def test_a_busy_machine_is_measured_again(
    busy: Callable[..., subprocess.CompletedProcess[str]], times: str
) -> None:
    done = busy(BUSY=times)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert 990_000 < int(done.stdout.splitlines()[-1].split()[1]) < 1_010_000


def test_it_never_claims_more_than_the_gpu_has(busy: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Steps here take no time at all, so that millions of a millisecond each seem to fit into a second."""
    line = busy().stdout.splitlines()[-2]
    assert float(line.partition("steps/s")[0].split()[-1]) > 10_000
    assert line.endswith(" 100.0% of the GPU's time")


def test_while_others_use_the_gpu_it_only_counts(
    busy: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = busy(WAIT="3")
    _, told, line, _ = done.stdout.splitlines()
    assert told == "other programs use the GPU, so the time of a step is not known: only steps are counted"
    assert re.fullmatch(r"\d+ steps in \d+\.\d s: +\d+\.\d steps/s", line)


def test_a_gpu_that_cannot_be_measured(busy: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = busy(BUSY="1000")
    assert done.returncode == 1 and done.stderr == (
        "nvc-spin: the GPU took no longer for twice the work: its time cannot be measured\n"
    )


def test_a_signal_while_it_measures_ends_it(busy: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = busy(BUSY="1000", TERM="5")
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert "0 steps in 0.0 s" in done.stdout
