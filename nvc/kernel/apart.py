"""Looks at files of containers by a child, which is given up where one of their file systems does not answer.

Once such a file system (fuse(4)) has read a request, not even SIGKILL ends who waits for the answer. The kernel
ends the child when the file system's server ends.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Pipe
from typing import TypeVar

T = TypeVar("T")
PATIENCE, LEAST = 5.0, 0.5  # seconds: of the first that does not answer, and of each after many
CAUSE = "no answer: a file system there waits for its server; end that server, or the container"
_silent: list[int] = []


def apart(work: Callable[[], Iterable[T]], patience: float = 0.0) -> Iterator[T]:
    """What `work` yields in a child, each within `patience` seconds; by default PATIENCE, half of it next time.

    Values are pickled. Raises TimeoutError, and the exception that `work` has raised.
    """
    patience = patience or max(PATIENCE / 2 ** len(_silent), LEAST)
    ours, theirs = Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        try:
            with open(os.devnull, "r+b", buffering=0) as null:  # whoever reads the output waits for no child
                for fd in range(3):
                    os.dup2(null.fileno(), fd)
            for value in work():
                theirs.send((value, None))
        except BaseException as error:
            theirs.send((None, error))
        finally:
            os._exit(0)
    theirs.close()
    try:
        while ours.poll(patience):
            value, raised = ours.recv()
            if raised is not None:
                raise raised
            yield value
    except EOFError:
        return
    finally:
        ours.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, os.WNOHANG)
    _silent.append(pid)
    raise TimeoutError(errno.ETIMEDOUT, CAUSE, "files of the container")
