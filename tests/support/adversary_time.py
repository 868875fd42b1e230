"""The programs of the catalogue that try to have more of a GPU's time: the ways of tests/adversary/take_time*.c."""

from __future__ import annotations

import os
from dataclasses import dataclass

from . import REPO, run
from .builds import kept
from .simdriver import WARN


@dataclass(frozen=True)
class Way:
    """One of take_time's ways."""

    name: str
    tries: str
    burst: float = (
        0.005  # seconds of its work that can be under way when its share is reached: paid for later
    )
    #: The part of the time that a neighbour may have beyond its cap: for its work beside unfinished work of this
    #: one it is charged half, though that may wait for something and not run, where no mark shows that.
    lends: float = 0.0
    swings: float = 1.0  # what it may have beyond that in a single second
    least: float = 0.6  # the part of its cap that it has at least, on the simulated driver
    gpu: bool = True  # it runs on a real GPU too
    copies: bool = False  # it runs no kernels, so that the simulated device does not say how long they ran
    nightly: bool = False  # it takes a second of a processor, and is left out of `make test`
    #: It breaks its slice and ends: on a GPU it is started over, in a new slice, until its time is over.
    breaks: bool = False


WAYS = (
    Way("honest", "kernels of 1 ms, each waited for", 0.001),
    # What is launched, where, and by which call.
    Way("queue", "kernels of 5 µs in a queue that is never waited for", 0.001),
    Way("alternate", "60 kernels of 1 µs, wait, one of 100 ms of the same shape, wait", 0.1),
    Way(
        "alternate-queued",
        "60 kernels of 1 µs and one of 20 ms of the same shape, in a queue",
        0.04,
    ),
    Way("streams", "4,000 streams"),
    Way("no-context", "a kernel of a library in an explicit stream, without a current context"),
    Way("new-streams", "a stream for each kernel, destroyed at once"),
    Way("new-contexts", "a context for each kernel of 50 ms, destroyed at once", 0.05, least=0),
    Way("two-contexts", "two contexts in turn, in both something is under way at any time", 0.012),
    Way("null-stream", "the default stream, waiting for ten kernels at a time"),
    Way("random", "three streams and three lengths of kernels, with pauses, at random", 0.02),
    Way("long-behind-short", "20 short kernels that are waited for, and a long one in another stream", 0.03),
    Way("long-behind-many", "4,000 kernels of 5 µs and 256 of 20 ms of the same shape, in a queue", 0.1),
    Way(
        "long-after-proof",
        "150,000 kernels of 5 µs and 100 of 20 ms of the same shape, in a queue",
        0.85,
    ),
    Way("ex", "cuLaunchKernelEx, where the next kernel may begin before the last one has ended"),
    Way("changed-stream", "cuLaunchKernelEx, whose stream changes while the call reads the rest", 0.02),
    Way("cooperative", "cuLaunchCooperativeKernel"),
    Way("old-calls", "cuLaunchGridAsync", least=0),
    Way("proc-address", "a launch that cuGetProcAddress found, in the thread's default stream"),
    Way("ptsz", "cuLaunchKernel_ptsz"),
    Way("new-modules", "a module for each kernel of 20 ms, unloaded at once", 0.02),
    Way("functions", "400 functions of a module, the last of which is long", 0.02),
    Way("shapes", "a grid of another size for each launch", 0.006),
    Way("failures", "50 launches that fail in front of one that does not", 0.01),
    Way("signal", "launches from the handler of a signal"),
    Way("priorities", "a long kernel in a stream of low priority beside short ones in one of high", 0.016),
    Way("green", "a green context, and a stream of its own", least=0),
    # How it waits.
    Way("no-wait", "kernels of 5 ms, never waiting"),
    Way("sleep", "it sleeps for as long as its kernel takes, and asks nobody"),
    Way("event", "it asks an event again and again", 0.003),
    Way("blocking-event", "it sleeps until an event has come", 0.003),
    Way("early-event", "it waits for an event behind a short kernel, with a long one behind that", 0.018),
    Way("query", "it asks a stream again and again", 0.003),
    Way("copy", "it waits by a copy", 0.003),
    Way("free", "it waits by freeing memory", 0.003),
    Way("watch-memory", "it watches memory that the stream writes", 0.003),
    Way("held-back", "launches pile up behind a word that the host writes later", 0.04, swings=0.02),
    Way("pretending", "work that never ends, so that what it launches seems to be needed", 0.16),
    Way(
        "held-one-by-one",
        "eight streams wait, and one after the other goes on",
        0.008,
        lends=0.02,
        least=0.45,
        swings=0.02,
    ),
    Way("held-after-short", "short kernels, and then six long ones pile up behind a word", 0.12),
    Way(
        "held-gone", "a stream is destroyed while its work waits for a word", 0.005, lends=0.01, swings=0.02
    ),
    Way(
        "held-events",
        "streams wait for an event of one that waits, blocking ones for the default stream",
        0.007,
        swings=0.02,
    ),
    Way(
        "held-functions",
        "kernels wait for a function of the program that returns late",
        0.008,
        swings=0.02,
    ),
    Way("held-race", "a thread lets a stream wait while another launches in it", 0.01, swings=0.02),
    Way(
        "held-captures",
        "a stream waits, and another thread captures it for moments",
        0.01,
        lends=0.14,
        least=0.15,
        gpu=False,
    ),
    Way("held-context", "a stream of another context waits all the time", 0.012, swings=0.02),
    Way(
        "stolen-marks",
        "it records events that it has destroyed, and that may be the shim's by now, in a stream that waits",
        0.02,
        gpu=False,
    ),
    Way("across-streams", "a long kernel in a stream that waits for the one that is asked", 0.02),
    Way("events", "20,000 events"),
    Way("callback", "it waits for a function that the stream calls", 0.003),
    Way("another-waits", "another thread waits, and this one never stops launching", nightly=True),
    # Graphs.
    Way("graphs", "graphs of 100 kernels of 100 µs in a queue", 0.02),
    Way("replay", "a graph captured in one stream, launched in the default stream of another thread", 0.008),
    Way("capture", "launches while another stream captures"),
    Way("graph-update", "a graph's kernel is 5 µs long 39 times, and then 60 ms", 0.06),
    Way(
        "graph-update-whole",
        "a graph's kernel is 5 µs long 39 times, and then 60 ms, by cuGraphExecUpdate",
        0.06,
    ),
    Way("graph-switch", "a node of 40 ms is switched off 39 times, and then on", 0.04),
    Way("many-graphs", "1,500 graphs"),
    Way("nested-graphs", "a graph in a graph in a graph in a graph", 0.008),
    Way("short-lived-graphs", "a graph is cloned, uploaded, launched and destroyed", 0.02),
    Way("graph-loop", "a graph that the device repeats 40 times by itself", 0.08, lends=0.05),
    # No kernels: memory of the device is set and copied.
    Way("memset", "512 MiB are set, again and again", copies=True, nightly=True),
    Way("memset-rows", "512 MiB are set in rows, again and again", copies=True, nightly=True),
    Way("device-copy", "512 MiB are copied on the device", copies=True),
    Way("any-copy", "512 MiB are copied by a call that does not say which memory it is", copies=True),
    Way("memset-graph", "a graph that sets 512 MiB four times", copies=True, nightly=True),
    # Threads and processes.
    Way("threads", "16 threads with default streams of their own", 0.032),
    Way("many-threads", "200 threads with default streams of their own", 0.4, nightly=True),
    Way("short-threads", "a thread for each kernel, which ends at once", 0.04),
    Way("cancelled-threads", "threads that are cancelled while they launch", 0.01),
    Way("processes", "four processes, each with kernels of 1 ms", 0.004),
    Way("queues-of-processes", "three processes that never wait", 0.03),
    Way("forking", "children come and go while it launches", 0.004),
    Way("child-of-fork", "a child of fork launches with what the parent had", 0.002),
    Way("only-contexts", "contexts are made and destroyed one after the other, and nothing else", least=0),
    Way(
        "exec", "each program becomes the next one while its kernel of 30 ms runs", 0.03, least=0, lends=0.01
    ),
    Way("leaving", "each process leaves 50 ms of kernels behind", 0.05, least=0),
    # They end in the middle of something, or flood.
    Way(
        "exit-in-callback",
        "_exit in a function that the stream calls between kernels of 20 ms",
        0.04,
        least=0,
    ),
    Way(
        "kill-in-callback",
        "SIGKILL in a function that the stream calls between kernels of 20 ms",
        0.04,
        lends=0.03,  # once it is killed, nobody says how much of its unfinished work ran
        least=0,
    ),
    Way(
        "thread-ends-in-callback",
        "the driver's thread ends in a function that the stream calls, and another stream goes on",
        lends=0.03,
        least=0,
        gpu=False,
    ),
    Way("dying", "processes that are killed after each of six steps, one after the other", 0.02, least=0),
    Way(
        "storm",
        "processes that are killed, three at a time, 200 a second",
        0.06,
        lends=0.03,  # as above
        least=0,
        nightly=True,
    ),
    Way("fork-in-launch", "a process is copied while another thread of it launches", 0.004),
    Way("ten-thousand-streams", "10,000 streams", nightly=True),
    Way("another-root", "it changes its root directory while kernels run"),
    # Something is taken from the shim.
    Way("no-descriptors", "no descriptor is open, and none can be opened", least=0, gpu=False),
    Way("closed-descriptors", "all descriptors are closed while kernels run", least=0, gpu=False),
    Way("no-memory", "no memory can be had", least=0, gpu=False),
    Way("no-limits", "all resource limits that the driver does not need are 0"),
    Way("unmapped-ledger", "processes unmap the slice's ledger while kernels run, and die of it", least=0),
    Way(
        "cut-ledger",
        "a process cuts the file of the ledger short while kernels run, and dies of it: no other gets a context",
        least=0,
        breaks=True,
    ),
    Way(
        "copied-shim", "two copies of the shim in a process, each knows half of the launches", 0.012, least=0
    ),
    Way(
        "lone-shim",
        "two copies of the shim; the second finds no quota and refuses, the first goes on",
        0.012,
    ),
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
