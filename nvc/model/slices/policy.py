"""The policies by which slices share a GPU's time, one row each. Pure.

Parsing, nvcd's plan, entitlements, help, shell completion and docs/sharing.md (packaging/tables.py) follow this
table. Other places know some policies by name. `nvc/slices/policy/advice.py` says which one to choose. Those that
are not timed, `native` and `concurrent`, are in `native/vgpu/layout.h`, whose names `time/window.c` and
`view/mps.c` there use, and in `nvc/model/slices/layout.py`. Timeslices under `first` are also in
`nvc/daemon/keeper/plan.py`. A row's number is its place.
"""

from __future__ import annotations

from nvc.base.value import Value

MS = 1_000_000  # nanoseconds
#: What bounds a slice from above: nothing but its own work, its cap, or an equal part of the device.
NOTHING, CAP, EQUAL = "nothing", "cap", "equal part"


class Policy(Value):
    """One policy."""

    number: int  # in quotas, and for people who know cGPU's
    name: str
    text: str  # who gets what, for the documentation
    bound: str = NOTHING  # nvcd gives nobody more, also while the device is idle
    weighs: bool = False  # the time is divided by weight; otherwise equally
    timed: bool = True  # nvcd sets timeslices and stops slices at their caps; otherwise the driver shares alone
    server: bool = False  # its slices share one MPS server; a cap is a part of the multiprocessors
    quanta: int = 1  # how many times as long timeslices are, where the operator says nothing

    @property
    def caps(self) -> bool:
        """Whether a cap holds under it."""
        return self.timed or self.server

    @property
    def needs_nvcd(self) -> bool:
        """Whether only nvcd enforces it: the shim enforces caps."""
        return self.server or self.timed and self.bound != CAP


TABLE = (
    Policy(0, "fair", "an equal part, even if others are idle: 1/(number of slices), or 1/`--max-instances` if that"
           " is less", EQUAL),
    Policy(1, "first", "slices that ask for `first` go before the others, and get equal parts. The others get the"
           " rest"),
    Policy(2, "weight", "time in proportion to its weight. Time of idle slices goes to the others", weighs=True),
    Policy(3, "fixed", "at most its cap, even if the GPU is idle. Slices without a cap, which asked for other"
           " policies, share the rest", CAP),
    Policy(4, "soft", "as under `weight`, in longer timeslices: fewer switches, longer waits", weighs=True,
           quanta=4),
    Policy(5, "native", "what the driver gives it. Caps and weights do not hold", timed=False),
    Policy(6, "concurrent", "kernels of all slices run at the same time, under one MPS server. Slices with less"
           " weight pause between launches. For tenants who trust each other", weighs=True, timed=False,
           server=True),
)  # fmt: skip
MPS_CLIENTS = 60  # of one server, as the driver has it; each slice is at least one
POLICIES = tuple(row.name for row in TABLE)
#: What a slice has for which none is named: with a cap, with only a weight. With neither: layout.POLICY_NATIVE.
POLICY_FIXED, POLICY_WEIGHT = map(POLICIES.index, ("fixed", "weight"))
#: Under it, slices that ask for it by name go before the others.
FIRST = POLICIES.index("first")
#: For people who type one.
CHOICES = f"{', '.join(POLICIES[:-1])} or {POLICIES[-1]}, or 0 to {len(POLICIES) - 1}"
WITHOUT_NVCD = " or ".join(row.name for row in TABLE if not row.needs_nvcd)


def policy_of(number: int) -> Policy:
    """The row of a number in a quota or in the file `about` of a slice, which is never negative.

    A number that only a newer version of nvc knows names itself, and nvcd gives its slices equal parts. A device
    policy that is not in the table cannot be read: nvc/slices/policy/policies.py raises PolicyError.
    """
    return TABLE[number] if number < len(TABLE) else Policy(number, str(number), "")


HEAD = (
    "| policy | number | what a slice gets | cap | weight | needs `nvcd` |\n"
    "| --- | --- | --- | --- | --- | --- |\n"
)


def table() -> str:
    """The table of docs/sharing.md, which packaging/tables.py puts there."""
    lines = [HEAD]
    for row in TABLE:
        cap = "limits the multiprocessors, not the time" if row.server else "enforced" if row.timed else "ignored"
        weight = "used" if row.weighs else "ignored"
        needs = "yes" if row.needs_nvcd else "for exact caps" if row.timed else "no"
        lines.append(f"| `{row.name}` | {row.number} | {row.text} | {cap} | {weight} | {needs} |\n")
    return "".join(lines)
