"""Where the launcher enters: dispatches the commands that must start fast, leaves the others to click."""

from __future__ import annotations

import gc
import posix
import sys

from nvc.base.errors import InternalError, NvcError, UsageError, one_line
from nvc.base.program import Silent, guarded, leave, say
from nvc.base.value import Value
from nvc_cli.options import HOT
from nvc_cli.parse import parse_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from nvc.frontends.configure import RunLog
    from nvc.request.config import Config
    from nvc_cli.parse import CommandLine, Values, Words

class Trace(Silent):
    """With NVC_TRACE set: microseconds of each stage on standard error, `trace: <stage> <microseconds>`."""

    def __init__(self) -> None:
        import time

        self._now = time.perf_counter
        self._last = self._now()
        # What the interpreter and the imports took until here, as processor time: there is no other clock of it.
        self._show("start", time.process_time())

    def _show(self, stage: object, seconds: float) -> None:
        sys.stderr.write(f"trace: {stage} {seconds * 1e6:.0f}\n")

    def done(self, *stage: object) -> None:
        """Show how long the stage took."""
        now = self._now()
        self._show(stage[0], now - self._last)
        self._last = self._now()


class Session(Value):
    """What a hot command is handed: its parsed words and where to log."""

    program: str
    command: str
    globals: Values
    words: Words
    log: RunLog


def main(program: str = "nvc-cli") -> NoReturn:
    """Run the command of `sys.argv` and end the process without the interpreter's slow farewell."""
    gc.disable()  # the process ends before a cycle would matter
    leave(run(program, sys.argv[1:]))


def run(program: str, argv: list[str]) -> int:
    """The exit code of one call. Every failure has become a line on standard error."""
    return guarded(program, lambda: _dispatch(program, argv))


def configuration(path: str, root: str) -> Config:
    """The settings for a daemon, from the file at `path` and for the driver root `root`; "": the usual ones.

    Raises ConfigError.
    """
    from nvc.model.request import place
    from nvc.request.config import load

    config = load(path)
    if not root:
        return config
    root, ldcache = place(root, "")
    return config.replace(root=root, ldcache=ldcache)


def _dispatch(program: str, argv: list[str]) -> int:
    line = parse_line(argv or ["--help"] if b"_NVC_CLI_COMPLETE" not in posix.environ else argv)
    if line.show == "version":
        from nvc_cli.output import write
        from nvc_cli.version import version_text

        write(version_text())
    elif line.show == "usage":
        from nvc_cli.output import write
        from nvc_cli.usage import usage

        write(usage(program, line.command))
    elif line.command in HOT and not line.show:
        return _run_hot(program, line)
    else:
        completing = b"_NVC_CLI_COMPLETE" in posix.environ  # a shell asks through the environment
        if not (line.command or line.show or completing):
            return _misused(program, UsageError("no command"), "")
        from nvc_cli import main as tree

        if line.command and line.command not in (*HOT, *tree.LAZY):
            from nvc_cli.suggest import command_hint

            hint = command_hint("", line.command, [*HOT, *tree.LAZY])
            return _misused(program, UsageError("unknown command", cause=line.command, hint=hint), "")
        return tree.run(program, line)
    return 0


def _run_hot(program: str, line: CommandLine) -> int:
    log = _open_log(program, line)
    try:
        if len(line.words.rest) != len(HOT[line.command][1].split()):
            return _misused(program, _wrong_number(line), line.command)
        session = Session(program, line.command, line.globals.values, line.words, log)
        if line.command == "configure":
            from nvc_cli.configure import run as command
        elif line.command == "list":
            from nvc_cli.list import run as command
        elif line.command == "info":
            from nvc_cli.info import run as command
        else:
            raise InternalError(f"no program for the command {line.command}")
        command(session)
    except Exception as error:
        log.error(str(error) if isinstance(error, NvcError) else repr(error))
        raise
    return 0


def _open_log(program: str, line: CommandLine) -> RunLog:
    """The log that --debug asks for, or else NVC_DEBUG_FILE, as nvidia-container-cli does."""
    path = line.globals.values.get("debug")
    if path is None:
        path = posix.environ.get(b"NVC_DEBUG_FILE", b"").decode("utf-8", "surrogateescape")
        if not path:
            return Trace() if b"NVC_TRACE" in posix.environ else Silent()
    from nvc_cli.debuglog import open_log

    log = open_log(program, str(path))
    log.step(f"{line.command}: {' '.join(map(one_line, sys.argv[1:]))}")
    return log


def _wrong_number(line: CommandLine) -> UsageError:
    if not line.words.rest:
        return UsageError(f"{line.command} needs {HOT[line.command][1]}")
    return UsageError("too many arguments", cause=line.words.rest[-1])


def _misused(program: str, error: UsageError, command: str) -> int:
    """The cause first, since engines show one line of a hook, then how the call should look."""
    from nvc_cli.usage import hint, usage

    shown = "" if error.hint else usage(program, command)  # the hint has the call
    say(program, f"{error.line()}\n{shown}{hint(program, command)}".rstrip())
    return error.exit_code
