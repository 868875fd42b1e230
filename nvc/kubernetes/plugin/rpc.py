"""gRPC over sockets of this node: servers of the services in protocol/*.proto, and calls of kubelet's own.

Servers run in one event loop, and answers in threads beside it. A server of gRPC that has threads wakes them five
times a second, for as long as it is there; this one costs nothing while nobody calls.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import stat
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from nvc.base.errors import InitializationError

#: A stream occupies a thread as long as kubelet listens; there is one for each resource.
THREADS = 48
#: Characters of a path of a socket (unix(7)).
PATH_MAX = 107
CALL_TIMEOUT = 10.0  # seconds
#: Seconds that calls may take which have begun when a server is stopped.
GRACE = 5.0


class Refused(Exception):
    """An answer that is an error with the code FAILED_PRECONDITION; its text is for the caller."""


#: A method of a service: its name, and what makes gRPC's handler of it, with the threads for answers.
Method = tuple[str, Callable[[ThreadPoolExecutor], Any]]


def method(
    name: str,
    request: type[Message],
    answer: Callable[[Any], Message] | Callable[[Any], Awaitable[Message]],
) -> Method:
    """A method with one answer. `answer` is called in any thread, or is a coroutine; it may raise Refused."""
    called: Callable[[Any], Any] = answer

    def handler(pool: ThreadPoolExecutor) -> Any:
        async def call(request: Any, context: Any) -> Any:
            try:
                if inspect.iscoroutinefunction(called):
                    return await called(request)
                return await asyncio.get_running_loop().run_in_executor(pool, called, request)
            except Refused as error:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
                raise

        return grpc.unary_unary_rpc_method_handler(call, request.FromString, _serialized)

    return name, handler


def stream(
    name: str,
    request: type[Message],
    answers: Callable[[Any, threading.Event], Iterator[Message]],
    wake: Callable[[], None],
) -> Method:
    """A method whose answers go on until the caller has gone.

    `answers` gets an event that is set as long as the caller listens; `wake` has it look at that.
    """

    def handler(pool: ThreadPoolExecutor) -> Any:
        async def call(request: Any, _: object) -> AsyncIterator[Message]:
            alive = threading.Event()
            alive.set()
            messages = answers(request, alive)
            try:
                loop = asyncio.get_running_loop()
                while (message := await loop.run_in_executor(pool, next, messages, None)) is not None:
                    yield message
            finally:
                alive.clear()
                wake()

        made: Any = grpc.unary_stream_rpc_method_handler
        return made(call, request.FromString, _serialized)

    return name, handler


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of all servers of this process, which runs from here on."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(ThreadPoolExecutor(THREADS, "answer"))
    threading.Thread(target=loop.run_forever, name="grpc", daemon=True).start()
    return loop


def in_loop(work: Coroutine[Any, Any, None]) -> None:
    """Do something where servers run, and wait for it."""
    asyncio.run_coroutine_threadsafe(work, _loop()).result()


class SocketPath:
    """Where a server listens, in place of whatever socket an earlier process has left there."""

    def __init__(self, path: str) -> None:
        """Raises InitializationError with the path."""
        if len(os.fsencode(path)) > PATH_MAX:
            raise InitializationError(
                "open socket", path, f"longer than {PATH_MAX} characters", "choose a shorter directory"
            )
        self.path = path
        self._identity: tuple[int, int] | None = None
        try:
            os.makedirs(os.path.dirname(path), 0o750, exist_ok=True)
            self._clear()
        except OSError as error:
            raise InitializationError.of("open socket", path, error) from None

    def bind(self, server: grpc.aio.Server) -> None:
        """Have a server that has not started listen here. Raises InitializationError with the path."""
        before = os.umask(0o077)
        try:
            server.add_insecure_port(f"unix:{self.path}")
        except RuntimeError as error:
            raise InitializationError("open socket", self.path, error, "`ss -lxp` shows who has it") from None
        finally:
            os.umask(before)
        self._identity = self._inode()

    def _clear(self) -> None:
        """Remove a socket that is in the way; nothing else is."""
        try:
            status = os.lstat(self.path)
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(status.st_mode):
            raise InitializationError("open socket", self.path, "is there and not a socket", "remove it")
        os.unlink(self.path)

    def _inode(self) -> tuple[int, int] | None:
        try:
            status = os.lstat(self.path)
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def is_there(self) -> bool:
        """Whether the path still leads to this server: a kubelet that starts removes sockets of device plugins."""
        return self._identity is not None and self._inode() == self._identity

    def remove(self) -> None:
        """Remove the socket, unless another process has put its own there."""
        if self.is_there():
            os.unlink(self.path)


class Socket(SocketPath):
    """A server at a path."""

    def __init__(self, path: str, services: dict[str, tuple[Method, ...]]) -> None:
        """Serves from here on. Raises InitializationError with the path."""
        super().__init__(path)
        self._pool = ThreadPoolExecutor(THREADS, "grpc")
        in_loop(self._start(services))

    async def _start(self, services: dict[str, tuple[Method, ...]]) -> None:
        self._server = grpc.aio.server(options=(("grpc.max_send_message_length", -1),))
        for service, methods in services.items():
            handlers = {name: handler(self._pool) for name, handler in methods}
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self.bind(self._server)
        await self._server.start()

    def stop(self, grace: float = GRACE) -> None:
        """End all calls and remove the socket."""
        self.remove()
        in_loop(self._server.stop(grace))


def call(
    path: str, method: str, request: Message, reply: type[Message], timeout: float = CALL_TIMEOUT
) -> Any:
    """One call of `/service/Method` at a socket. Raises grpc.RpcError."""
    # Servers in Go refuse what grpc makes of a path in place of a host's name.
    options = (("grpc.default_authority", "localhost"), ("grpc.max_receive_message_length", 64 << 20))
    with grpc.insecure_channel(f"unix:{path}", options) as channel:
        ask: Any = channel.unary_unary(
            method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=reply.FromString,
        )
        return ask(request, timeout=timeout)
