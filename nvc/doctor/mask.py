"""Takes secrets out of a text, and names by which a host or a person could be told."""

from __future__ import annotations

import os
import re

from nvc.doctor.context import read_text

#: Values that follow a name that sounds like a secret, up to a blank or a quote.
_SECRET = re.compile(
    r"""(?ix)
    ( [\w.-]* (?: passw(?:or)?d | passphrase | secret | token | api[_-]?key | access[_-]?key | private[_-]?key
                | credential | authorization | identitytoken | \bauth ) [\w.-]*
      ["']? \s* [=:] \s* (?: ["'] | (?:bearer|basic)\s+ )? )
    ( [^\s"',;}]+ )
    """
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}")
#: USER:PASSWORD@ of an address.
_USER_INFO = re.compile(r"(\b[a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s@\"']+@")
_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_UUID = re.compile(r"\b(GPU|MIG|MIG-GPU)-([0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12})")
_SERIAL = re.compile(
    r"(?i)(\b(?:board )?(?:serial(?: ?(?:number|no\.?))?|s/n)\b[\"']?\s*[=:#]?\s*[\"']?)([A-Z0-9-]{6,})"
)
_HOME = re.compile(r"(/home/|/run/user/|/Users/)([^/\s\"':]+)")
_MAC = re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.IGNORECASE)
_ADDRESS = re.compile(
    r"(?<![\w.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w.])"
)

GONE = "<removed>"


class Mask:
    """`text` without secrets, and with `names` also without names of host, user and device.

    A device has the same number wherever it is named, so that one can follow it.
    """

    def __init__(self, names: bool = True) -> None:
        self._names = names
        self._devices: dict[str, str] = {}
        self._hosts = _host_names() if names else ()

    def __call__(self, text: str) -> str:
        text = _KEY.sub(GONE, text)
        text = _USER_INFO.sub(rf"\1{GONE}@", text)
        text = _BEARER.sub(rf"\1 {GONE}", text)
        text = _SECRET.sub(rf"\1{GONE}", text)
        if not self._names:
            return text
        text = _UUID.sub(self._device, text)
        text = _SERIAL.sub(rf"\1{GONE}", text)
        text = _HOME.sub(r"\1<user>", text)
        text = _MAC.sub("<mac>", text)
        text = _ADDRESS.sub("<address>", text)
        for name in self._hosts:
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "<host>", text)
        return text

    def _device(self, match: re.Match[str]) -> str:
        number = self._devices.setdefault(match[2].lower(), f"{len(self._devices) + 1:012d}")
        return f"{match[1]}-00000000-0000-0000-0000-{number}"


def _host_names() -> tuple[str, ...]:
    """The names of this host, longest first. `localhost` names none."""
    names = {os.uname().nodename, read_text("/etc/hostname", 256)}
    names |= {name.partition(".")[0] for name in names}
    return tuple(sorted((name for name in names - {"localhost"} if len(name) > 1), key=len, reverse=True))
