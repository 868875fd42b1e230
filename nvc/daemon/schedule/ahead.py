"""Turns that are laid down before they begin, so that the interpreter need not wake up at the end of each.

Between two things that happen, the arbiters say whose turns come next (foresight.py), and these follow each
other in nvc.kernel.turns. As soon as anything else is to be done, the arbiters hear what has passed, and then
of that.
"""

from __future__ import annotations

from nvc.daemon.io.clients import Client
from nvc.daemon.schedule.foresight import foresee, take_over
from nvc.kernel.turns import DEVICES_MAX, END, TURNS_MAX, Turns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.daemon.io.loop import Loop
    from nvc.daemon.schedule.arbiter import Arbiter
    from nvc.daemon.schedule.foresight import Turn
    from nvc.daemon.schedule.gang import Board
    from nvc.daemon.schedule.turns import Lease
    from nvc.daemon.server import Server

FEW = 2


class Course:
    """How far ahead it is worth to look on one device: as far as could be seen before."""

    __slots__ = ("most", "lease", "turns")

    def __init__(self) -> None:
        self.most = FEW
        self.lease: Lease | None = None  # that of when it was looked last
        self.turns: list[Turn] = []


class Ahead:
    """`wait` is for the loop: as its own `poll`, but turns go on meanwhile."""

    def __init__(self, loop: Loop, board: Board, server: Server) -> None:
        self.loop = loop
        self.board = board
        self.server = server
        self.turns = Turns()
        self._courses: dict[bytes, Course] = {}
        self._epoll = loop.epoll.fileno()

    def wait(self, due: int) -> list[tuple[int, int]]:
        """Descriptors that can be read, as soon as there are some; none: that time has come."""
        under_way: list[tuple[Arbiter, Course]] = []
        until = self.loop.following
        for arbiter in self.board.ordered:
            if arbiter.deadline is None:
                continue
            course = self._look(arbiter, len(under_way))
            if course is not None:
                under_way.append((arbiter, course))
            elif arbiter.deadline < until:
                until = arbiter.deadline
        if not under_way:
            return self.loop.poll(due)
        how = self.turns.let_pass(self._epoll, len(under_way), until)
        resting = []
        for number, (arbiter, course) in enumerate(under_way):
            ended = self._catch_up(arbiter, course, number)
            if ended is not None:
                resting.append((arbiter, *ended))
        # Now that all know what has passed: what follows may concern several devices.
        for arbiter, turn, since in resting:
            arbiter.release(turn.member, turn.round, True, since)
        # What is left undone can be read still.
        return [] if how == END else self.loop.poll(0)

    def _look(self, arbiter: Arbiter, number: int) -> Course | None:
        """Lay down the turns that come next; None: it is not worth it, or not known."""
        course = self._courses.get(arbiter.uuid)
        if course is None:
            course = self._courses[arbiter.uuid] = Course()
            self._courses = {uuid: one for uuid, one in self._courses.items() if uuid in self.board.arbiters}
        lease = arbiter.lease
        if lease is None or lease is course.lease or number >= DEVICES_MAX:
            return None  # looked at before, and something came in between
        course.lease = lease
        course.turns, laid_down = [], []
        spent: dict[Client, int] = {}
        for turn in foresee(arbiter, course.most):
            client = turn.member.client
            assert isinstance(client, Client)
            course.turns.append(turn)
            laid_down.append((client.fd, turn.round, turn.length, turn.held, turn.rest))
            spent[client] = spent.get(client, 0) + 1
            if spent[client] > client.tokens:
                break  # its next message is looked at as others are
        if len(laid_down) < FEW:
            return None
        # What comes later is foreseen from what came before: half a turn for each, and it is looked at anew.
        slack = arbiter.policy.slice * len(arbiter.wanting) // 2
        self.turns.lay_down(number, arbiter.uuid, arbiter.patience(), slack, laid_down, lease.began)
        return course

    def _catch_up(self, arbiter: Arbiter, course: Course, number: int) -> tuple[Turn, int] | None:
        """Tell the arbiter which turns have ended and begun. Returned is one that ended while nobody was due, and
        when."""
        turns = course.turns
        resting = None
        place = 0
        passed = self.turns.passed(number)
        for ended, began in passed:
            last = turns[place]
            client = last.member.client
            assert isinstance(client, Client)
            client.tokens -= 1
            if began:
                place += 1
                take_over(arbiter, turns[place], ended, began)
            else:
                resting = last, ended
        self.server.messages += len(passed)
        if place + 1 == len(turns):
            course.most = min(2 * course.most, TURNS_MAX)
        else:
            course.most = max(FEW, (course.most + 2 * place) // 2)
        last = turns[place]
        code = self.turns.error(number)
        if code and isinstance(last.member.client, Client):
            self.server.doom(last.member.client, code)
        return resting
