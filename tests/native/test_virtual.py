"""Virtual time itself: what it says is exact, and the same each time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence

import pytest
from support import CLEAN_ENV, run
from support.simdriver import WARN
from support.vgpucap import Capped, end_workers
from support.virtual import Stuck, World, device_time

PIPE = subprocess.PIPE
PROGRAM = r"""
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static unsigned long places;

static void *place(void *none)
{
    void *had = malloc(3000);
    places = places * 31 + ((unsigned long)&none >> 12) % 1000 + ((unsigned long)had >> 4) % 1000;
    free(had);
    return none;
}

int main(int argc, char **word)
{
    (void)word;
    sigset_t none;
    sigemptyset(&none);
    if (argc > 1)
        sigwaitinfo(&none, NULL);
    for (int i = 0; i < 20; i++) { /* where the memory of those lies whose threads nobody waits for */
        pthread_t thread;
        pthread_create(&thread, NULL, place, NULL);
        pthread_detach(thread);
        free(malloc(100));
        usleep(1000);
    }
    printf("%lu\n", places);
    return 0;
}
"""


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = str(tmp_path_factory.mktemp("program"))
    source = os.path.join(directory, "program.c")
    with open(source, "w", encoding="ascii") as out:
        out.write(PROGRAM)
    run("gcc", *WARN, "-o", os.path.join(directory, "program"), source, "-lpthread")
    return os.path.join(directory, "program")


def said(world: World, words: Sequence[str]) -> list[int]:
    """What a program writes until it ends, as numbers."""
    process = world.start(words, CLEAN_ENV, stdout=PIPE)
    assert world.finish(process) == 0
    assert process.stdout is not None
    with process.stdout as out:
        return [int(line) for line in out.read().split()]


def test_threads_that_end_leave_the_same_memory_each_time(world: World, program: str) -> None:
    """However late the host lets them go: where something lies decides what a table of it is read for first."""
    first = said(world, [program])
    for late in (0.0, 0.001, 0.004):
        world.late(late)
        assert said(world, [program]) == first


def test_a_program_that_waits_for_what_is_not_simulated(
    world: World, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said where, instead of a result that depends on the host."""
    monkeypatch.setattr("support.virtual.STUCK", 0.2)
    process = world.start([program, "stuck"], CLEAN_ENV)
    with pytest.raises(Stuck, match=f"process {process.pid} is in program: 128 "):
        world.run(1)
    world.kill(process)


def test_a_program_that_dies_while_it_has_the_turn(world: World, program: str) -> None:
    process = world.start(["/bin/sh", "-c", "kill -9 $$"], CLEAN_ENV)
    world.run(1)
    assert world.finish(process) == -9


def test_processes_take_the_same_course_each_time(
    virtual: str, scratch: str, sim_root: Callable[..., str], shims: str, work: str
) -> None:
    """To the nanosecond, in the driver's account and in the shim's: three programs behind one cap, twice.

    The second time each thread begins and ends late in real time, as on a busy machine.
    """

    def course(name: str, late: float) -> tuple[object, ...]:
        directory = os.path.join(scratch, name)
        os.mkdir(directory)
        world = World(virtual, directory)
        world.late(late)
        slice_ = Capped(sim_root(), shims, work)
        slice_.workers, slice_.time = [], world
        slice_.cap(40)
        for batch in (0, 1, 3):
            slice_.worker(ns=300_000, threads=2, streams=2, batch=batch, seconds=600, warm=0)
        world.run(1)
        seen = (device_time(slice_.root).total, slice_.budget(), world.switches)
        end_workers([slice_])
        world.end()
        return seen

    assert course("first", 0) == course("other", 0.003)
