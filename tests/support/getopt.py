"""The C library's own getopt_long(3), which argp parses with, as the judge of what a word means."""

from __future__ import annotations

import ctypes

from nvc_cli.options import FLAG, OMITTED, OPTIONAL, SHOW

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc_cli.options import Option

_LIBC = ctypes.CDLL(None)
_END, _COMPLAINT, _LONG = -1, ord("?"), 256
_ARGUMENT = {FLAG: 0, SHOW: 0, OPTIONAL: 2}  # no_argument, optional_argument; else required_argument


class _LongOption(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("has_arg", ctypes.c_int),
        ("flag", ctypes.POINTER(ctypes.c_int)),
        ("val", ctypes.c_int),
    ]


class Refused(Exception):
    """getopt_long complains."""


def getopt(
    options: tuple[Option, ...], words: list[str], in_order: bool
) -> tuple[list[tuple[str, str]], list[str], str]:
    """Each option with its value ("" for a flag), the words that are none, and a SHOW option that ended it."""
    # `?` is also how it complains, so the letter is passed as one that nobody uses.
    words = [word.replace("?", "@") for word in words]
    options = tuple((o[0], o[1].replace("?", "@"), *o[2:]) for o in options)
    letters = "".join(
        one + {FLAG: "", SHOW: "", OPTIONAL: "::"}.get(o[2], ":") for o in options for one in o[1]
    )
    table = (_LongOption * (len(options) + 1))()
    for index, option in enumerate(options):
        table[index] = _LongOption(option[0].encode(), _ARGUMENT.get(option[2], 1), None, _LONG + index)
    argv = (ctypes.c_char_p * (len(words) + 2))(b"program", *(word.encode() for word in words))
    optind = ctypes.c_int.in_dll(_LIBC, "optind")
    optarg = ctypes.c_char_p.in_dll(_LIBC, "optarg")
    ctypes.c_int.in_dll(_LIBC, "opterr").value = 0
    optind.value = 0  # start anew
    found: list[tuple[str, str]] = []
    while True:
        shorts = (("+" if in_order else "") + letters).encode()
        code = _LIBC.getopt_long(len(words) + 1, argv, shorts, table, None)
        if code == _END:
            break
        if code == _COMPLAINT:
            raise Refused(words)
        option = options[code - _LONG] if code >= _LONG else next(o for o in options if chr(code) in o[1])
        if option[2] == SHOW:
            return found, [], option[0]
        value = "" if option[2] == FLAG else OMITTED
        found.append((option[0], value if optarg.value is None else optarg.value.decode().replace("@", "?")))
    rest = [word or b"" for word in argv[optind.value : len(words) + 1]]
    return found, [word.decode().replace("@", "?") for word in rest], ""
