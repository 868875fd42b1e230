"""What ways to share a GPU gave where that was measured, by `bench together` or programs like its own. Data.

`python3 tests/bench/together.py -o effects` prints rows for a GPU. A row is not carried over to another GPU model,
and only to another number of slices where the table has nothing nearer: `Effect.text` says what was measured.
"""

from __future__ import annotations

from nvc.base.value import Value
from nvc.model.slices.policy import TABLE

#: What the measured programs do: wait for each step of a few milliseconds, as decoding does; never wait, as
#: training does; or some the one and some the other.
DECODE, TRAIN, MIX = "decode", "train", "mix"


class Effect(Value):
    """One policy, with so many slices that always have work."""

    model: str  # the GPU's name, as NVML has it
    load: str
    slices: int
    policy: str
    speed: float  # steps of all, of what each would do alone: 1.0 is what one GPU does for one
    p99: float | None  # the time within which 99 % of the steps end, as a multiple of that alone
    when: str  # driver and date
    note: str = ""
    uneven: bool = False  # the slices had different weights, which the note says

    @property
    def text(self) -> str:
        """For people, in one line."""
        late = f"; 99 % of steps take up to {self.p99:.1f} times as long" if self.p99 is not None else ""
        return f"{self.speed:.2f} times one alone{late}{f' ({self.note})' if self.note else ''}"


FIRST = "driver 580.159.04, 2026-11-22"
SECOND = "driver 580.159.04, 2026-11-23"
MEASURED = (
    Effect("NVIDIA H200", DECODE, 2, "native", 0.94, 2.1, SECOND),
    Effect("NVIDIA H200", DECODE, 2, "concurrent", 1.11, 1.9, SECOND),
    Effect("NVIDIA H200", DECODE, 4, "native", 0.94, 4.2, SECOND),
    Effect("NVIDIA H200", DECODE, 4, "concurrent", 1.46, 2.8, SECOND),
    Effect("NVIDIA H200", DECODE, 8, "native", 0.94, 8.5, FIRST),
    Effect("NVIDIA H200", DECODE, 8, "concurrent", 1.47, 5.6, FIRST),
    Effect("NVIDIA H200", TRAIN, 2, "native", 0.90, None, FIRST),
    Effect("NVIDIA H200", TRAIN, 2, "concurrent", 1.02, None, FIRST),
    Effect("NVIDIA H200", TRAIN, 4, "native", 0.90, None, FIRST),
    Effect("NVIDIA H200", TRAIN, 4, "concurrent", 1.02, None, FIRST),
    Effect("NVIDIA H200", MIX, 2, "native", 0.92, 2.2, SECOND),
    Effect("NVIDIA H200", MIX, 2, "concurrent", 1.03, 11.1, SECOND),
    Effect("NVIDIA H200", MIX, 4, "native", 0.90, None, SECOND),
    Effect("NVIDIA H200", MIX, 4, "concurrent", 1.06, None, SECOND),
    Effect("NVIDIA H200", DECODE, 2, "concurrent", 1.06, 6.6, SECOND, "weights 3:1", True),
    Effect("NVIDIA H200", DECODE, 8, "concurrent", 1.45, 27.8, SECOND, "weights 1 to 8", True),
)


LOADS = {DECODE: "wait for each step", TRAIN: "never wait", MIX: "half wait, half do not"}
HEAD = "| slices | their programs |"


def table(rows: tuple[Effect, ...] = MEASURED) -> str:
    """The table of docs/choose-policy.md, by packaging/tables.py: a column for each measured policy."""
    names = [row.name for row in TABLE if any(one.policy == row.name for one in rows)]
    titles = "".join(f" `{name}` |" for name in names)
    lines = [f"{HEAD}{titles} measured on |", "| --- | --- |" + " --- |" * (len(names) + 1)]
    for model, when, load, slices in dict.fromkeys((one.model, one.when, one.load, one.slices) for one in rows):
        cells = []
        for name in names:
            found = [
                one
                for one in rows
                if (one.model, one.when, one.load, one.slices, one.policy) == (model, when, load, slices, name)
            ]
            cells.append("; ".join(_cell(one) for one in found) or "-")
        lines.append(f"| {slices} | {LOADS[load]} | {' | '.join(cells)} | {model}, {when} |")
    return "\n".join(lines) + "\n"


def _cell(one: Effect) -> str:
    late = f", p99 {one.p99:.1f}" if one.p99 is not None else ""
    return f"{one.speed:.2f}{late}{f' ({one.note})' if one.note else ''}"


def effect(
    model: str,
    load: str,
    slices: int,
    policy: str,
    table: tuple[Effect, ...] = MEASURED,
    uneven: bool = False,
) -> Effect | None:
    """What was measured on this model of GPU with this load; of several, with the nearest number of slices.

    Where the slices have different weights (`uneven`), figures of such slices come first.
    """
    found = [
        one
        for one in table
        if one.model == model
        and one.load == load
        and one.policy == policy
        and slices > 1
        and (uneven or not one.uneven)
    ]
    return min(found, key=lambda one: (one.uneven != uneven, abs(one.slices - slices)), default=None)
