"""What programs of a slice are told before it is suspended, and once it runs again. Pure.

    http:8000/sleep?level=1    a POST to that port of 127.0.0.1, in their network namespace
    signal:USR1                a signal to those that use a GPU and have a handler for it
    off                        nothing

No command: only an engine can start one in a container with all of the container's confinement.
"""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.base.value import Value

OFF = "off"
HOOK_MAX = 80
SIGNALS = {"USR1": 10, "USR2": 12}
_PORT_MAX = 65535
_IN_PATH = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._~-?=&%+:")
_WANTED = (
    f"want http:PORT/PATH with a port up to {_PORT_MAX}, signal:{' or signal:'.join(SIGNALS)}, or {OFF}, "
    f"at most {HOOK_MAX} characters"
)


class Hook(Value):
    """How programs are told: a signal, or a request."""

    signal: int = 0
    port: int = 0
    path: str = ""  # with its query


def parse_hook(name: str, text: str) -> str:
    """The text, if it is a hook. Raises InputError naming `name`."""
    if text != OFF and hook_of(text) is None:
        raise InputError(name, text[:HOOK_MAX], _WANTED, "a path has letters, digits and /._~-?=&%+:")
    return text


def hook_of(text: str) -> Hook | None:
    """The hook that a text is; None: it is none, or off."""
    kind, _, rest = text[: HOOK_MAX + 1].partition(":")
    if len(text) > HOOK_MAX:
        return None
    if kind == "signal" and rest in SIGNALS:
        return Hook(signal=SIGNALS[rest])
    port, slash, path = rest.partition("/")
    if kind != "http" or not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) <= _PORT_MAX):
        return None
    return Hook(port=int(port), path=slash + path) if slash and _IN_PATH.issuperset(path) else None
