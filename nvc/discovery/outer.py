"""A slice seen from inside: discovery in a container that has one finds shims where the driver's libraries were."""

from __future__ import annotations

from nvc.base.errors import DetectionError, InputError
from nvc.base.files import closing
from nvc.discovery.hostroot import HostRoot
from nvc.model.facts import HostFacts, Library, OuterSlice, identity_of
from nvc.model.slices.layout import LEDGER_DIRECTORY, LEDGER_NAME, QUOTA_FILE, REAL


def outer_slice(root: HostRoot, shims: tuple[Library, ...]) -> OuterSlice | None:
    """What lies beside the shims, None where there are none.

    Raises DetectionError where something is missing: nested containers would have shims that give nothing.
    """
    if not shims:
        return None
    directory = shims[-1].path.rpartition("/")[0]
    real = []
    for library in shims:
        path = f"{library.path.rpartition('/')[0]}/{REAL}{library.soname}"
        try:
            fd, status = root.open_regular(path)
            with closing(fd):
                real.append(library.replace(path=root.real_path(fd), identity=identity_of(status)))
        except OSError as error:
            raise DetectionError.of("find slice", path, error, "this container's slice is broken") from None
    quota, ledger = f"{directory}/{QUOTA_FILE}", f"{directory}/{LEDGER_DIRECTORY}"
    for path in (quota, f"{ledger}/{LEDGER_NAME}"):
        if not root.exists(path):
            raise DetectionError("find slice", path, "missing", "this container's slice is broken")
    return OuterSlice(tuple(real), quota, ledger)


def refuse_slices(facts: HostFacts) -> None:
    """Raise InputError if this container has a slice itself: a slice cannot be divided again."""
    if facts.outer is not None:
        raise InputError(
            "make a slice", cause="this container has a slice itself, which nested ones share",
            hint="ask for no part, or ask outside",
        )  # fmt: skip
