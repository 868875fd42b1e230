"""Programs that mean no harm, in slices beside each other under nvcd: what they did, and what nvcd found."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any

from .nvcd import Place, ask
from .realtime import REAL, Lines, Time

START = 240.0  # seconds that all may take until each has made its first step
END = 60.0  # and until each has ended
LOOK = 2.0  # between two looks at what nvcd has found


class Honest:
    """A program in a slice. It writes a line when it has begun, and what it did after a line on its input."""

    def __init__(
        self, name: str, words: Sequence[str], variables: dict[str, str], time: Time = REAL
    ) -> None:
        self.name, self.time = name, time
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self.process = time.start(
            words,
            variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self._lines = Lines(time, self.process.stdout)

    def line(self, seconds: float) -> str:
        found = self._lines.next(seconds)
        assert found is not None, f"{self.name} ended: {self.problem()}"
        return found

    def problem(self) -> str:
        """What it wrote at last to where errors go."""
        self.errors.seek(0)
        return f"{self.process.poll()}: {self.errors.read()[-2000:]}"

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.time.kill(self.process)
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            if stream is not None:
                stream.close()


def wrong(state: Any) -> list[str]:
    """What nvcd has found of slices, and whom it denies something; a stranger is no slice."""
    found = [f"{kind}: {count}" for kind, count in state["found"].items() if count and kind != "stranger"]
    return found + [f"denied: {one}" for one in state["denied"]] + [str(one) for one in state["broken"]]


def unverified(state: Any, names: Sequence[str]) -> list[str]:
    """Slices of which NVML has not told how much memory they have: of these nvcd could find nothing."""
    told = {one["key"] for one in state["memory"] if one["truth"]}
    return [one["key"] for one in state["slices"] if one["key"] not in told] or (
        [] if len(state["slices"]) >= len(names) else [f"{len(state['slices'])} slices of {len(names)}"]
    )


def side_by_side(place: Place, tenants: Sequence[Honest], seconds: float) -> dict[str, str]:
    """Let all run so long at the same time. Returns what each says that it did.

    Raises AssertionError when one ends early, or as soon as nvcd has found or denied something, with its events.
    """
    time = place.time
    until = time.now + START
    for one in tenants:
        one.line(max(1, until - time.now))
    answers = ask(place)["nvml"]["answers"]
    end = time.now + seconds
    while (left := end - time.now) > 0:
        time.wait([one.process.stdout for one in tenants], min(LOOK, left))  # one that says something ends
        for one in tenants:
            assert one.process.poll() is None, f"{one.name} ended: {one.problem()}"
        state = ask(place)
        assert not wrong(state), (wrong(state), state["events"])
    state = ask(place)
    assert not unverified(state, [one.name for one in tenants]), state["memory"]
    assert state["nvml"]["answers"] - answers >= seconds / 10, "nvcd has hardly asked NVML"
    for one in tenants:
        one.stop()
    said = {one.name: one.line(END) for one in tenants}
    for one in tenants:
        assert time.finish(one.process, END) == 0, f"{one.name}: {one.problem()}"
    state = ask(place)
    assert not wrong(state), (wrong(state), state["events"])
    return said


def options(
    place: Place, launcher: str, root: str, name: str, devices: Sequence[str], memory: str
) -> list[str]:
    """The words before a program that has a slice of these GPUs with a weight of 1."""
    of_slice = (f"--device={','.join(devices)}", f"--memory={memory}", "--weight=1", f"--name={name}")
    return place.sliced(launcher, root, *of_slice)
