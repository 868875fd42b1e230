"""What a command is handed: its parsed words and where to log."""

from __future__ import annotations

from nvc.errors import InputError
from nvc.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from nvc.model import HostFacts
    from nvc.plan.ops import Plan
    from nvc.selection import Selection
    from nvc_cli.parse import Values, Words

    class Log(Protocol):
        """The steps of a run; `cli/debuglog.py` writes them, without --debug nobody does."""

        def step(self, text: str) -> None: ...
        def facts(self, facts: HostFacts) -> None: ...
        def selection(self, selection: Selection) -> None: ...
        def plan(self, plan: Plan) -> None: ...
        def warnings(self, warnings: tuple[str, ...]) -> None: ...
        def error(self, text: str) -> None: ...


class Silent:
    """The log of a run without --debug."""

    def step(self, *_: object) -> None:
        """Say nothing."""

    facts = selection = plan = warnings = error = step


class UsageError(InputError):
    """A wrong number of words: the usage text follows the message."""


class Session(Value):
    """One call of a hot command."""

    program: str
    command: str
    globals: Values
    words: Words
    log: Log
