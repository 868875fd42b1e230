"""What reaches the terminal: whole texts on standard output, single lines on standard error."""

from __future__ import annotations

import posix

from nvc.base.errors import NvcError, one_line
from nvc.base.program import put
from nvc.base.program import say as say
from nvc.base.types import Any, Callable

BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
WIDTH = 80  # columns where standard output is no terminal
LONG = 2.0  # seconds; for less, progress is not worth looking at
OFTEN = 0.2  # seconds between two lines of it


class OutputError(NvcError, code="NVC-2201", stage="output", hint="redirect it elsewhere"):
    """Standard output does not take what was to be printed."""


def write(text: str) -> None:
    """Print `text`. Raises OutputError, and BrokenPipeError where nobody reads on."""
    try:
        put(1, text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError.of("write", "standard output", error) from None


class Line:
    """One line for who waits, where standard error is a terminal: written again and again, and removed at last."""

    def __init__(self, wanted: bool = True) -> None:
        dumb = posix.environ.get(b"TERM", b"dumb") == b"dumb"
        self._wanted = wanted and not dumb and posix.isatty(2)
        self._told = -OFTEN

    @property
    def room(self) -> int:
        return min(columns(2), WIDTH) - len("^C") - 1  # or what a terminal echoes begins a new line

    def tell(self, at: float, text: str) -> None:
        """`text`, unless the last one is new; `at` are the seconds that have passed."""
        if self._wanted and at - self._told >= OFTEN:
            self._told = at
            self._put(f"\r{text[: self.room]}\x1b[K")

    def end(self) -> None:
        if self._told >= 0:
            self._put("\r\x1b[K")

    def _put(self, text: str) -> None:
        try:
            put(2, text)
        except OSError:
            self._wanted = False  # nobody looks any more


#: Set by `nvidia-ctk --quiet`: standard error has errors alone.
quiet = False


def note(program: str, text: object) -> None:
    """One line on standard error for somebody who looks on; no error."""
    if not quiet:
        say(program, text)


def warn(program: str, warnings: tuple[str, ...]) -> None:
    """Each warning as a line on standard error."""
    for warning in warnings:
        note(program, f"warning: {one_line(warning)}")


def json_text(document: dict[str, Any]) -> str:
    """`document` as indented JSON with a newline at its end; keys keep their order."""
    import json  # 7 ms: only where it was asked for

    return json.dumps(document, indent=2) + "\n"


def document_text(document: dict[str, Any], form: str) -> str:
    """`document` in the structured form `form`, json or yaml."""
    if form == "json":
        return json_text(document)
    from nvc.base.yamlwrite import yaml_text

    return yaml_text(document)


def show(
    form: str, document: Callable[[], dict[str, Any]], table: Callable[[int], str], text: Callable[[], str] = str
) -> None:
    """Print in the form that was asked for: `document` as json or yaml, `table` of so many columns, or `text`."""
    if form in ("json", "yaml"):
        write(document_text(document(), form))
    else:
        write(emphasised(table(columns())) if form == "table" else text())


def one_of_many(document: dict[str, Any], form: str) -> str:
    """One of several documents that follow each other: a line of JSON, or a document of a YAML stream."""
    if form == "json":
        import json

        return json.dumps(document) + "\n"
    return document_text(document, form)  # which begins with `---`


def columns(fd: int = 1) -> int:
    """The width of the terminal that standard output, or `fd`, is; 0 for anything else, which gets whole tables."""
    try:
        return posix.get_terminal_size(fd).columns or WIDTH  # a terminal may not know its size
    except OSError:
        return 0


def emphasised(text: str) -> str:
    """`text` with its first line bold, where standard output is a terminal that shows colours."""
    if not coloured():
        return text
    head, newline, rest = text.partition("\n")
    return f"{BOLD}{head}{PLAIN}{newline}{rest}"


def coloured() -> bool:
    """Whether to colour standard output: on a terminal only, and never with NO_COLOR or TERM=dumb.

    https://no-color.org: any value of NO_COLOR but the empty one turns colour off.
    """
    environment = posix.environ
    if environment.get(b"NO_COLOR") or environment.get(b"TERM", b"dumb") == b"dumb":
        return False
    return posix.isatty(1)
