"""The interactive `nvc-cli vgpu top`: a terminal that is taken, drawn, asked for keys, and given back as it was."""

from __future__ import annotations

import curses
import locale
import os
import select
import signal
import time
from collections.abc import Callable
from types import FrameType

from nvc.base.errors import NvcError, one_line
from nvc.slices.show.bars import ASCII, BLOCKS, Characters
from nvc.slices.show.screen import body_length, frame
from nvc.slices.show.view import Picture, View, pressed

FIRST = 0.25  # seconds until the first shares are there
ESCAPE_DELAY = 25  # milliseconds that the rest of a key may take which begins with Escape
#: For a terminal that this host's terminfo does not know: what nearly all of them do.
COMMON = "xterm-256color"
NAMES = {
    27: "escape",
    curses.KEY_UP: "up",
    curses.KEY_DOWN: "down",
    curses.KEY_PPAGE: "page up",
    curses.KEY_NPAGE: "page down",
    curses.KEY_HOME: "home",
    curses.KEY_END: "end",
}
COLOURS = {
    "good": curses.COLOR_GREEN,
    "high": curses.COLOR_YELLOW,
    "bad": curses.COLOR_RED,
    "mark": curses.COLOR_CYAN,
}
ATTRIBUTES = {
    "head": curses.A_BOLD,
    "dim": curses.A_DIM,
    "bad": curses.A_BOLD,
    "mark": curses.A_BOLD,
    "selected": curses.A_REVERSE,
}


class Ended(Exception):
    """A signal that ends the program has come."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run(look: Callable[[], Picture], interval: float, count: int, coloured: bool, everything: bool) -> None:
    """Show pictures until the operator leaves, or `count` of them unless that is 0. Raises NvcError, OSError.

    A signal that ends the program does so when the terminal is as it was before.
    """
    picture = look()  # what fails at the start is told on a terminal that nobody has taken yet
    try:
        with Screen(coloured) as screen:
            _show(screen, look, picture, interval, count, everything)
    except KeyboardInterrupt:
        return
    except Ended as ended:
        signal.signal(ended.number, signal.SIG_DFL)
        os.kill(os.getpid(), ended.number)


def _show(
    screen: Screen,
    look: Callable[[], Picture],
    picture: Picture,
    interval: float,
    count: int,
    everything: bool,
) -> None:
    view: View | None = View(gone=everything, chars=screen.characters)
    due, shown = time.monotonic() + min(interval, FIRST), 0
    while view is not None:
        screen.draw(picture, view)
        key = screen.key(due - time.monotonic())
        if key:
            view = pressed(view, key, body_length(picture, view))
        elif time.monotonic() >= due:
            if count and shown >= count:
                return
            picture = _next(look, picture)
            due, shown = time.monotonic() + interval, shown + 1


def _next(look: Callable[[], Picture], before: Picture) -> Picture:
    """What is there now; where that cannot be told, what was there before, and why."""
    try:
        return look()
    except NvcError as error:
        return before.replace(warnings=(one_line(error.line()),))


class Screen:
    """The terminal; to be used with `with`."""

    def __init__(self, coloured: bool) -> None:
        self._coloured = coloured
        self._attributes = dict(ATTRIBUTES)
        self._handlers: dict[int, object] = {}
        self.characters: Characters = ASCII

    def __enter__(self) -> Screen:
        self.characters = _characters()
        self._wake, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._woken = signal.set_wakeup_fd(wake, warn_on_full_buffer=False), wake
        # Before curses is there, which has no handler of its own then for a window that changes.
        for number, handler in (
            (signal.SIGWINCH, _nothing), (signal.SIGCONT, _nothing), (signal.SIGTERM, _end), (signal.SIGHUP, _end),
        ):  # fmt: skip
            self._handlers[number] = signal.signal(number, handler)
        try:
            curses.setupterm(os.environ.get("TERM") or COMMON)
        except curses.error:
            os.environ["TERM"] = COMMON
        curses.set_escdelay(ESCAPE_DELAY)
        self._window = curses.initscr()
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _begin(self) -> None:
        curses.noecho()
        curses.cbreak()
        self._window.keypad(True)
        self._window.nodelay(True)
        try:
            curses.curs_set(0)
        except curses.error:
            pass  # some terminals cannot hide it
        if self._coloured:
            curses.start_color()
            curses.use_default_colors()
            for number, (style, colour) in enumerate(COLOURS.items(), 1):
                if curses.COLORS > colour:
                    curses.init_pair(number, colour, -1)
                    self._attributes[style] = self._attributes.get(style, 0) | curses.color_pair(number)

    def __exit__(self, *_: object) -> None:
        try:
            curses.endwin()
        except curses.error:
            pass  # the terminal is gone
        before, wake = self._woken
        signal.set_wakeup_fd(before)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        os.close(wake)
        os.close(self._wake)

    def draw(self, picture: Picture, view: View) -> None:
        """All of it; what is on the terminal already is not sent again."""
        columns, lines = os.get_terminal_size(1)
        if (lines, columns) != self._window.getmaxyx() and lines > 0 and columns > 0:
            curses.resizeterm(lines, columns)
        height, width = self._window.getmaxyx()
        self._window.erase()
        for y, line in enumerate(frame(picture, view, width, height)):
            x = 0
            for text, style in line:
                try:
                    self._window.addstr(y, x, text, self._attributes.get(style, 0))
                except curses.error:
                    pass  # the last cell is written, but the cursor cannot go on from there
                x += len(text)
        self._window.refresh()

    def key(self, seconds: float) -> str:
        """The next key; "" when the time is over, or something else has happened."""
        code = self._window.getch()
        if code == -1:
            ready = select.select([0, self._wake], [], [], max(seconds, 0))[0]
            if self._wake in ready and signal.SIGCONT in os.read(self._wake, 4096):
                self._window.redrawwin()  # the shell has written over it
            if 0 not in ready:
                return ""
            code = self._window.getch()
            if code == -1:
                raise Ended(signal.SIGHUP)  # the terminal has gone
        return NAMES.get(code, chr(code) if 32 <= code < 127 else "other")


def _nothing(number: int, _: FrameType | None) -> None:
    """Wake the one who waits for a key."""


def _end(number: int, _: FrameType | None) -> None:
    raise Ended(number)


def _characters() -> Characters:
    """Blocks where locale and terminal have them. The console of Linux has no eighths."""
    try:
        locale.setlocale(locale.LC_ALL, "")
    except locale.Error:
        return ASCII  # and curses takes every character for one of ASCII
    term = os.environ.get("TERM", "")
    known = locale.nl_langinfo(locale.CODESET) == "UTF-8" and not term.startswith(("linux", "vt", "ansi"))
    return BLOCKS if known else ASCII
