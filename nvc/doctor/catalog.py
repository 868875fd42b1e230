"""All checks, which of them a name means, and running them."""

from __future__ import annotations

import difflib

from nvc.doctor import (
    AS_ROOT,
    Blocked,
    Check,
    Result,
    claim,
    container,
    contents,
    driver,
    files,
    installation,
    kubernetes,
    nodes,
    ok,
    registrations,
    running,
    settings,
    slices,
    specs,
    system,
    unknown,
)
from nvc.errors import InputError, NvcError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.doctor import Finding
    from nvc.doctor.context import Context

#: In an order in which causes come before what follows from them.
HOST: tuple[Check, ...] = (
    *system.CHECKS, *installation.CHECKS, *settings.FILE, *driver.LOADED, *files.CHECKS, *nodes.CHECKS,
    *driver.ANSWERS, *settings.KEPT, *specs.CHECKS, *registrations.CHECKS, *running.CHECKS, *slices.CHECKS,
)  # fmt: skip
CONTAINER: tuple[Check, ...] = (*container.CHECKS, *contents.CHECKS)
KUBERNETES: tuple[Check, ...] = (*kubernetes.CHECKS, *settings.KEPT)
CLAIM: tuple[Check, ...] = claim.CHECKS
CHECKS = (*HOST, *CONTAINER, *kubernetes.CHECKS, *CLAIM)
#: What a group of checks looks at, which an option must name.
_KINDS = {"container": "container", "kubernetes": "node of Kubernetes", "claim": "claim of a pod"}
_WANTS = {"container": "--container ID", "kubernetes": "--kubernetes", "claim": "--claim NAMESPACE/NAME"}


def choose(names: tuple[str, ...], given: tuple[str, ...] = ()) -> tuple[Check, ...]:
    """The checks that `names` mean, whole names or groups; without names those of what was `given` to look at:
    container, kubernetes, claim; else those of the host. Raises InputError."""
    if not names:
        chosen = [CONTAINER if "container" in given else ()]
        chosen.append(KUBERNETES if "kubernetes" in given else ())
        chosen.append(CLAIM if "claim" in given else ())
        return tuple(check for group in chosen for check in group) or HOST
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
        if group in _WANTS and group not in given:
            raise InputError(
                "choose check", name, f"looks at a {_KINDS[group]}", f"name it: {_WANTS[group]}"
            )
        found += meant
    return tuple(dict.fromkeys(found))


def examine(context: Context, checks: tuple[Check, ...]) -> tuple[Result, ...]:
    """What each check finds. None of them can fail: what keeps one from looking is its finding."""
    return tuple(Result(check, _findings(context, check)) for check in checks)


def _findings(context: Context, check: Check) -> tuple[Finding, ...]:
    found: list[Finding] = []
    try:
        found += check.run(context)
    except Blocked as other:
        found.append(unknown(f"not checked: first mend {other}"))
    except PermissionError as error:
        found.append(
            unknown(f"{error.filename or 'this'} cannot be read: permission denied", advice=AS_ROOT)
        )
    except OSError as error:
        cause = (error.strerror or str(error)).lower()
        found.append(unknown(f"cannot be checked: {error.filename or check.title}: {cause}"))
    except NvcError as error:
        found.append(unknown(f"cannot be checked: {error}", advice=error.hint))
    except Exception as error:  # a check that is wrong must not keep the others from being made
        text = f"this check has a bug: {type(error).__name__}: {error}"
        found.append(unknown(text, advice="please report it, with --bundle"))
    return tuple(found) or (ok(f"{check.title}: no problem found"),)


def table() -> str:
    """The table of docs/doctor.md."""
    rows = ["| check | looks at |", "| --- | --- |"]
    rows += [f"| `{check.name}` | {check.title} |" for check in CHECKS]
    return "".join(f"{row}\n" for row in rows)
