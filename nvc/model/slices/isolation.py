"""The kinds of isolation of a slice: their names, and where each may be asked for.

mig: a MIG device of its own; mps: an MPS server of its own; kernel: the driver limits the memory of its cgroup.
"" is the shim alone.
"""

from __future__ import annotations

from nvc.base.errors import InputError

MIG, MPS, KERNEL = "mig", "mps", "kernel"
ISOLATIONS = (MIG, MPS, KERNEL)
#: By these a slice has a device for itself.
EXCLUSIVE = (MIG, MPS)
#: What an operator's configuration and the sizes of CDI devices may say.
OPERATORS = ("", KERNEL)
#: What parameters of a claim may say. An MPS server would be in nvcd's container, and end with it.
CLAIMS = ("none", MIG, KERNEL)


def parse_isolation(name: str, text: str) -> str:
    """The kind of isolation that `text` names. Raises InputError naming the option or variable `name`."""
    if text not in ISOLATIONS:
        raise InputError(name, text, f"want {', '.join(ISOLATIONS[:-1])} or {ISOLATIONS[-1]}")
    return text
