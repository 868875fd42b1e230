"""`nvc-cli vgpu report`: what slices receive of their GPUs' time, measured for a while."""

from __future__ import annotations

import errno
import os
import posix
import stat
import time

import click

from nvc.base.errors import InputError, counted
from nvc.base.files import closing
from nvc.base.program import INTERRUPTED, put
from nvc_cli import completion, output
from nvc_cli.main import Seconds, filled, program_of, value
from nvc_cli.vgpu_group import FORMAT, command, everybody, operator_kernel

MOST_READINGS = 100_000
_ELSEWHERE = "name a file that can be written, in a directory that is there"
_WRITE = posix.O_WRONLY | posix.O_NOFOLLOW | posix.O_CLOEXEC


class Progress(output.Line):
    """How far a measurement is."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds > output.LONG)
        self._seconds = seconds

    def measured(self, at: float, slices: int) -> None:
        """The measurement has come to `at` seconds, and so many slices have been measured."""
        text = f" {at:.0f} of {self._seconds:g} s, {counted(slices, 'slice')} measured"
        room = max(self.room - len(text) - 2, 0)
        done = min(int(room * at / self._seconds), room)
        self.tell(at, f"[{'#' * done}{'.' * (room - done)}]{text}")


@command(
    "report",
    "nvc-cli vgpu report --seconds 60 --output shares.svg",
    "nvc-cli vgpu report web 4242 --seconds 10 --interval 0.5",
)
@click.argument("names", metavar="[SLICE...]", nargs=-1, shell_complete=completion.slices)
@value("--seconds", "SECONDS", "Duration of the measurement.", default=10.0, type=Seconds(0.2, 86400))
@value("--interval", "SECONDS", "Time between two readings.", default=0.2, type=Seconds(0.05, 3600))
@value("--output", "path", "FILE.svg", "Draw utilization over time into this file.", callback=filled)
@FORMAT
@click.pass_context
def report_command(
    ctx: click.Context, names: tuple[str, ...], seconds: float, interval: float, path: str, form: str
) -> None:
    """Measure the utilization of slices; without SLICE, of all slices.

    Where the shim keeps time, utilization also counts the time in which kernels of others ran before
    a slice's own: all together may be more than 100%.

    In the drawing, solid lines are utilization, and dashed lines the entitlement. Ctrl-C ends the measurement early
    and keeps its results. With --output, if nothing was measured, no file is written and the exit code
    is 1.
    """
    if path and not path.endswith(".svg"):
        hint = "name a .svg file, and convert it: rsvg-convert shares.svg > shares.png"
        raise InputError("--output", path, "only SVG is drawn", hint)
    if interval > seconds:
        raise InputError("--interval", f"{interval:g}", f"longer than --seconds {seconds:g}", "ask for less")
    if interval * MOST_READINGS < seconds:
        raise InputError(
            "--interval", f"{interval:g}", f"more than {MOST_READINGS} readings", "ask for fewer"
        )
    from nvc.slices.show import plot
    from nvc.slices.show.history import watch
    from nvc.slices.show.tables import enforcement, tracks_table
    from nvc.slices.store.status import find

    kernel = operator_kernel()
    found = everybody(ctx, kernel)
    keys = tuple(find(found, name).entry.key for name in names)
    if path:
        check_writable(path)  # before a day is spent on what nothing can take
    progress = Progress(seconds)
    try:
        tracks, looked = watch(kernel, keys, seconds, interval, progress.measured)
    finally:
        progress.end()
    made = {"seconds": looked, "tracks": [track.document() for track in tracks]}
    output.show(form, lambda: made, lambda width: tracks_table(tracks, width))
    for line in enforcement(everybody(ctx, kernel)).splitlines():
        output.say(program_of(ctx), line)
    if not tracks:
        why = "no slice was measured: none used a GPU, or none has a cap or a policy of nvcd"
        output.say(program_of(ctx), f"{why}; {path} is not written" if path else why)
    elif path:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime())
        title = f"Utilization, {looked:g} s until {when}"
        write_file(path, plot.svg(title, tracks, looked))
    if looked < seconds:
        ctx.exit(INTERRUPTED)
    if path and not tracks:
        ctx.exit(1)


def check_writable(path: str) -> None:
    """Raises OutputError where `path` cannot be written. What is there stays as it is, and nothing new stays.

    A link is refused: in a directory like /tmp, others may have made it, to a file of root's.
    """
    try:
        try:
            posix.close(posix.open(path, _WRITE | posix.O_NONBLOCK))
        except FileNotFoundError:
            place, trial = os.path.dirname(path) or ".", f".{posix.urandom(8).hex()}"
            with closing(posix.open(place, os.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC)) as directory:
                posix.close(posix.open(trial, _WRITE | posix.O_CREAT | posix.O_EXCL, 0o600, dir_fd=directory))
                posix.unlink(trial, dir_fd=directory)
    except OSError as error:
        if error.errno != errno.ENXIO:  # a pipe that nobody reads yet
            raise output.OutputError.of("write", path, error, _ELSEWHERE) from None


def write_file(path: str, text: str) -> None:
    """Write a file, or into a pipe; through no link. Raises OutputError."""
    try:
        with closing(posix.open(path, _WRITE | posix.O_CREAT, 0o666)) as fd:
            if stat.S_ISREG(posix.fstat(fd).st_mode):
                posix.ftruncate(fd, 0)
            put(fd, text)
    except OSError as error:
        raise output.OutputError.of("write", path, error, _ELSEWHERE) from None
