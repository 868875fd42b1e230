"""The host's CLOCK_MONOTONIC, in which nvcd and the shims tell each other times."""

from __future__ import annotations

from nvc.errors import InitializationError

OFFSETS = "/proc/self/timens_offsets"
SECOND = 1_000_000_000


def ahead(path: str = OFFSETS) -> int:
    """Nanoseconds that this process's clock is ahead of the host's, by its time namespace: time_namespaces(7).

    Raises InitializationError.
    """
    try:
        with open(path, encoding="ascii") as offsets:
            lines = [line.split() for line in offsets]
    except FileNotFoundError:
        return 0  # a kernel without time namespaces
    except OSError as error:
        raise InitializationError.of("start nvcd", path, error) from None
    return next((int(words[1]) * SECOND + int(words[2]) for words in lines if words[0] == "monotonic"), 0)
