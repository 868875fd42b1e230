"""All checks, and which of them a name means."""

from __future__ import annotations

import difflib

from nvc.base.errors import InputError
from nvc.doctor import Check, container, contents
from nvc.doctor.host import (
    driver,
    files,
    nodes,
    nvcd,
    registrations,
    settings,
    slices,
    specs,
    system,
)
from nvc.doctor.kubernetes import claim
from nvc.doctor.kubernetes import node as kubernetes

#: In an order in which causes come before what follows from them.
HOST: tuple[Check, ...] = (
    *system.CHECKS, *settings.FILE, *driver.LOADED, *files.CHECKS, *nodes.CHECKS,
    *driver.ANSWERS, *settings.KEPT, *specs.CHECKS, *registrations.CHECKS, *slices.CHECKS, *nvcd.CHECKS,
)  # fmt: skip
#: Checks of what an option must name: the option, what it names, and the checks.
NAMED: dict[str, tuple[str, str, tuple[Check, ...]]] = {
    "container": ("--container ID", "container", (*container.CHECKS, *contents.CHECKS)),
    "kubernetes": ("--kubernetes", "node of Kubernetes", kubernetes.CHECKS),
    "claim": ("--claim NAMESPACE/NAME", "claim of a pod", claim.CHECKS),
}
CHECKS = (*HOST, *(check for _, _, checks in NAMED.values() for check in checks))


def choose(names: tuple[str, ...], given: tuple[str, ...] = ()) -> tuple[Check, ...]:
    """The checks that `names` mean, whole names or groups; without names those of what was `given` to look at:
    container, kubernetes, claim; else those of the host. Raises InputError."""
    if not names:
        chosen = [check for group in NAMED if group in given for check in NAMED[group][2]]
        return (*chosen, *(settings.KEPT if "kubernetes" in given else ())) or HOST
    found: list[Check] = []
    for name in names:
        meant = [check for check in CHECKS if check.name == name or check.name.startswith(f"{name}.")]
        if not meant:
            known = [check.name for check in CHECKS] + [check.name.split(".")[0] for check in CHECKS]
            near = difflib.get_close_matches(name, known, 1)
            raise InputError(
                "choose check", name, "there is no such check",
                f"did you mean `nvc-cli doctor {near[0]}`?" if near else "`nvc-cli doctor --list` lists them",
            )  # fmt: skip
        group = meant[0].name.partition(".")[0]
        if group in NAMED and group not in given:
            option, what, _ = NAMED[group]
            raise InputError("choose check", name, f"looks at a {what}", f"name it: {option}")
        found += meant
    return tuple(dict.fromkeys(found))
