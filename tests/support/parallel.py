"""Tests in several processes, a file in each at a time: `pytest --processes N`.

This process finds the files, imports none of them, and forks. Each worker takes a file, imports it, runs its tests
and takes the next: a file is read once, and forks of a worker are quick, because it holds few modules.
"""

from __future__ import annotations

import atexit
import collections
import gc
import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest


def add_option(parser: pytest.Parser) -> None:
    """Declare the option."""
    parser.addoption("--processes", type=int, default=0, help="run files of tests in so many processes")


def register(
    config: pytest.Config, first: tuple[str, ...] = (), together: Callable[[str], bool] = lambda _: False
) -> None:
    """Run tests as the option says. Files of `first` begin before all others, and one process has those `together`.

    Tests that are named, as in `test_file.py::test_name`, run in this process.
    """
    count = config.getoption("processes")
    if count and not config.getoption("collectonly") and not any("::" in word for word in config.args):
        config.pluginmanager.register(Parallel(count, first, together))


class _Whole(pytest.Item):
    """In the first process, all tests of a file."""

    def runtest(self) -> None:
        raise NotImplementedError("a worker runs them")


class _File(pytest.Module):
    """A file that the first process does not import."""

    worker = False

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        if self.worker:
            yield from super().collect()
        else:
            yield _Whole.from_parent(self, name="all")


class _Worker:
    """One process, as the first one sees it: the file that it has, how many tests of it began, and the last one."""

    def __init__(self, pid: int, connection: Connection[Any, Any]) -> None:
        self.pid = pid
        self.connection = connection
        self.handle = os.pidfd_open(pid)
        self.file, self.begun, self.last = 0, 0, ""
        self.well = False  # it has ended by itself


class Parallel:
    """The plugin of the first process."""

    def __init__(self, count: int, first: tuple[str, ...], together: Callable[[str], bool]) -> None:
        self._count = count
        self._first = first
        self._together = together
        self._keeper = 0  # the process that has what is together
        self._files: list[pytest.Collector] = []
        # Numbers of files, and how many of their tests have begun.
        self._ahead: collections.deque[tuple[int, int]] = collections.deque()
        self._workers: list[_Worker] = []

    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> pytest.Module:
        return _File.from_parent(parent, path=module_path)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Take the files, before marks of tests that nobody has read choose among them."""
        self._files += [item.parent for item in items if isinstance(item.parent, _File)]
        self._files.sort(key=lambda file: (file.nodeid not in self._first, not self._together(file.nodeid)))
        items.clear()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._ahead.extend((number, 0) for number in range(len(self._files)))
        gc.freeze()  # collections of workers would write to what they share
        while len(self._workers) < min(self._count, len(self._files)):
            self._fork(session)
        try:
            while self._workers:
                source: dict[Any, _Worker] = {each.connection: each for each in self._workers}
                source |= {each.handle: each for each in self._workers}
                for worker in {source[ready] for ready in wait(source)}:
                    self._hear(session, worker)
        finally:
            for worker in self._workers:
                worker.connection.close()
                os.waitpid(worker.pid, 0)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        return True

    def _next(self, worker: _Worker) -> tuple[int, int] | None:
        """What the worker runs next, which is not ahead any more."""
        for given in self._ahead:
            if self._together(self._files[given[0]].nodeid):
                self._keeper = self._keeper or worker.pid
                if self._keeper != worker.pid:
                    continue
            self._ahead.remove(given)
            return given
        return None

    def _fork(self, session: pytest.Session) -> None:
        ours, theirs = multiprocessing.Pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                ours.close()
                for other in self._workers:
                    other.connection.close()
                    os.close(other.handle)
                session.config.pluginmanager.unregister(self)
                _work(session, self._files, theirs)
                code = 0
            finally:
                os._exit(code)
        theirs.close()
        self._workers.append(_Worker(pid, ours))

    def _hear(self, session: pytest.Session, worker: _Worker) -> None:
        """Take a message, or see that the worker has ended; another one goes on if it should not have."""
        kind: str
        what: Any
        try:
            kind, what = worker.connection.recv() if worker.connection.poll() else ("gone", None)
        except (EOFError, ConnectionError):
            kind, what = "gone", None
        hook = session.config.hook
        if kind == "gone":
            self._workers.remove(worker)
            worker.connection.close()
            os.close(worker.handle)
            os.waitpid(worker.pid, 0)
            if not worker.well:
                name = worker.last or self._files[worker.file].nodeid
                _report(session, name, "its process ended meanwhile")
                if worker.last:
                    self._ahead.appendleft((worker.file, worker.begun))
                self._keeper = 0 if worker.pid == self._keeper else self._keeper
                self._fork(session)
        elif kind == "next":
            given = None if session.shouldfail else self._next(worker)
            if given:
                worker.file, worker.begun, worker.last = *given, ""
            worker.connection.send(given)
        elif kind == "begins":
            worker.begun, worker.last = worker.begun + 1, what
            session.testscollected += 1
        elif kind == "failed":
            _report(session, *what)
        elif kind == "ends":
            worker.well = True
        else:
            report = hook.pytest_report_from_serializable(config=session.config, data=what)
            if isinstance(report, pytest.TestReport):
                hook.pytest_runtest_logreport(report=report)
            else:
                hook.pytest_collectreport(report=report)


def _report(session: pytest.Session, name: str, text: str) -> None:
    """Report a failure that no test reports."""
    report = pytest.TestReport(name, (name, None, name), {}, "failed", text, "call")
    session.config.hook.pytest_runtest_logreport(report=report)


def _work(session: pytest.Session, files: list[pytest.Collector], connection: Connection[Any, Any]) -> None:
    """Run the tests of the files that the first process names by their numbers."""
    config = session.config
    atexit._clear()
    _File.worker = True
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(_Sender(config, connection))
    if capture := config.pluginmanager.getplugin("capturemanager"):
        capture.stop_global_capturing()  # its files are those of all workers
        capture.start_global_capturing()
        capture.suspend_global_capture()
    try:
        while not session.shouldfail and (given := _asked(connection)):
            _run(session, files[given[0]], given[1], connection)
        session._setupstate.teardown_exact(None)
    except BaseException:
        connection.send(("failed", ("a process of tests", traceback.format_exc())))
    atexit._run_exitfuncs()
    connection.send(("ends", None))


def _run(
    session: pytest.Session, file: pytest.Collector, begun: int, connection: Connection[Any, Any]
) -> None:
    """Run the tests of a file, without those that began in another worker."""
    config = session.config
    gc.disable()  # what is collected stays
    session.items = list(session.genitems(file))
    config.hook.pytest_collection_modifyitems(session=session, config=config, items=session.items)
    gc.enable()
    del session.items[:begun]
    for item, following in zip(session.items, [*session.items[1:], session]):
        connection.send(("begins", item.nodeid))
        # Fixtures of the session stay for the next file.
        config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            break


def _asked(connection: Connection[Any, Any]) -> tuple[int, int] | None:
    """The next file's number, and how many of its tests have begun."""
    connection.send(("next", None))
    given: tuple[int, int] | None = connection.recv()
    return given


class _Sender:
    """Sends a worker's reports to the first process."""

    def __init__(self, config: pytest.Config, connection: Connection[Any, Any]) -> None:
        self._config = config
        self._connection = connection

    def _send(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("report", data))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._send(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._send(report)
