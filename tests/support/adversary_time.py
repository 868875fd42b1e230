"""The programs of the catalogue that try to have more of a GPU's time: the ways of tests/adversary/take_time*.c."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

from . import REPO, run
from .builds import kept
from .simdriver import WARN
from .virtual import World


@dataclass(frozen=True)
class Way:
    """One of take_time's ways."""

    name: str
    tries: str
    gpu: bool = True  # it runs on a real GPU too
    copies: bool = False  # it runs no kernels, so that the simulated device does not say how long they ran
    nightly: bool = False  # it takes a second of a processor, and is left out of `make test`
    #: It breaks its slice and ends: on a GPU it is started over, in a new slice, until its time is over.
    breaks: bool = False
    ends: bool = False  # it, or its processes, may end before its time is over, or do next to nothing


WAYS = (
    Way("honest", "kernels of 1 ms, each waited for"),
    # What is launched, where, and by which call.
    Way("queue", "kernels of 5 µs in a queue that is never waited for"),
    Way("alternate", "60 kernels of 1 µs, wait, one of 100 ms of the same shape, wait"),
    Way("streams", "4,000 streams"),
    Way("no-context", "a kernel of a library in an explicit stream, without a current context"),
    Way("new-streams", "a stream for each kernel, destroyed at once"),
    Way("new-contexts", "a context for each kernel of 50 ms, destroyed at once", ends=True),
    Way("two-contexts", "two contexts in turn, in both something is under way at any time"),
    Way("long-behind-many", "4,000 kernels of 5 µs and 256 of 20 ms of the same shape, in a queue"),
    Way("ex", "cuLaunchKernelEx, where the next kernel may begin before the last one has ended"),
    Way("changed-stream", "cuLaunchKernelEx, whose stream changes while the call reads the rest"),
    Way("cooperative", "cuLaunchCooperativeKernel"),
    Way("old-calls", "cuLaunchGridAsync", ends=True),
    Way("proc-address", "a launch that cuGetProcAddress found, in the thread's default stream"),
    Way("ptsz", "cuLaunchKernel_ptsz"),
    Way("new-modules", "a module for each kernel of 20 ms, unloaded at once"),
    Way("signal", "launches from the handler of a signal"),
    Way("green", "a green context, and a stream of its own", ends=True),
    # How it waits.
    Way("sleep", "it sleeps for as long as its kernel takes, and asks nobody"),
    Way("event", "it asks an event again and again"),
    Way("blocking-event", "it sleeps until an event has come"),
    Way("query", "it asks a stream again and again"),
    Way("copy", "it waits by a copy"),
    Way("free", "it waits by freeing memory"),
    Way("watch-memory", "it watches memory that the stream writes"),
    Way("held-back", "launches pile up behind a word that the host writes later"),
    Way("pretending", "work that never ends, so that what it launches seems to be needed"),
    Way("held-one-by-one", "eight streams wait, and one after the other goes on"),
    Way("held-gone", "a stream is destroyed while its work waits for a word"),
    Way("held-events", "streams wait for an event of one that waits, blocking ones for the default stream"),
    Way("held-functions", "kernels wait for a function of the program that returns late"),
    Way("held-race", "a thread lets a stream wait while another launches in it"),
    Way("held-captures", "a stream waits, and another thread captures it for moments", gpu=False),
    Way("held-context", "a stream of another context waits all the time"),
    Way(
        "stolen-marks",
        "it records events that it has destroyed, and that may be the shim's by now, in a stream that waits",
        gpu=False,
    ),
    Way("events", "20,000 events"),
    Way("callback", "it waits for a function that the stream calls"),
    # Graphs.
    Way("graphs", "graphs of 100 kernels of 100 µs in a queue"),
    Way("replay", "a graph captured in one stream, launched in the default stream of another thread"),
    Way("capture", "launches while another stream captures"),
    Way("graph-update", "a graph's kernel is 5 µs long 39 times, and then 60 ms"),
    Way("many-graphs", "1,500 graphs"),
    Way("nested-graphs", "a graph in a graph in a graph in a graph"),
    Way("short-lived-graphs", "a graph is cloned, uploaded, launched and destroyed"),
    Way("graph-loop", "a graph that the device repeats 40 times by itself"),
    # No kernels: memory of the device is set and copied.
    Way("memset", "512 MiB are set, again and again", copies=True, nightly=True),
    Way("device-copy", "512 MiB are copied on the device", copies=True),
    # Threads and processes.
    Way("threads", "16 threads with default streams of their own"),
    Way("short-threads", "a thread for each kernel, which ends at once"),
    Way("cancelled-threads", "threads that are cancelled while they launch"),
    Way("processes", "four processes, each with kernels of 1 ms"),
    Way("queues-of-processes", "three processes that never wait"),
    Way("forking", "children come and go while it launches"),
    Way("child-of-fork", "a child of fork launches with what the parent had"),
    Way("only-contexts", "contexts are made and destroyed one after the other, and nothing else", ends=True),
    Way("exec", "each program becomes the next one while its kernel of 30 ms runs", ends=True),
    Way("leaving", "each process leaves 50 ms of kernels behind", ends=True),
    # They end in the middle of something, or flood.
    Way(
        "kill-in-callback", "SIGKILL in a function that the stream calls between kernels of 20 ms", ends=True
    ),
    Way(
        "thread-ends-in-callback",
        "the driver's thread ends in a function that the stream calls, and another stream goes on",
        gpu=False,
        ends=True,
    ),
    Way("dying", "processes that are killed after each of six steps, one after the other", ends=True),
    Way("storm", "processes that are killed, three at a time, 200 a second", nightly=True, ends=True),
    Way("fork-in-launch", "a process is copied while another thread of it launches"),
    Way("another-root", "it changes its root directory while kernels run"),
    # Something is taken from the shim.
    Way("no-descriptors", "no descriptor is open, and none can be opened", gpu=False, ends=True),
    Way("closed-descriptors", "all descriptors are closed while kernels run", gpu=False, ends=True),
    Way("no-memory", "no memory can be had", gpu=False, ends=True),
    Way("no-limits", "all resource limits that the driver does not need are 0"),
    Way("unmapped-ledger", "processes unmap the slice's ledger while kernels run, and die of it", ends=True),
    Way(
        "cut-ledger",
        "a process cuts the file of the ledger short while kernels run, and dies of it: no other gets a context",
        breaks=True,
        ends=True,
    ),
    Way("copied-shim", "two copies of the shim in a process, each knows half of the launches", ends=True),
    Way("lone-shim", "two copies of the shim; the second finds no quota and refuses, the first goes on"),
)


def compile_take_time(directory: str) -> str:
    """take_time*.c as a program in the directory."""
    program = os.path.join(directory, "take_time")
    folder = os.path.join(REPO, "tests/adversary")
    sources = sorted(f"{folder}/{name}" for name in os.listdir(folder) if name.endswith(".c"))
    # As gcc does by itself on some distributions, where results that are passed over are warned of.
    run(
        "gcc", *WARN, "-O2", "-D_FORTIFY_SOURCE=2", "-o", program, *sources, "-ldl", "-lpthread", timeout=300
    )
    return program


def lengths(said: str) -> dict[str, float]:
    """Microseconds that a call takes of each way that sets or copies memory: what `take_time lengths` says."""
    return {name: float(us) for name, us in (line.split() for line in said.splitlines())}


def take_time() -> str:
    """The program, compiled once for all tests."""
    return kept("take_time", compile_take_time)


def started(
    world: World, program: str, way: Way, variables: dict[str, str], seconds: float = 1000
) -> subprocess.Popen[bytes]:
    """It runs in virtual time from now on, for so long, where the environment has it."""
    words = [program, way.name, str(seconds), "1000"]
    return world.start(words, variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
