"""The process that the kubelet talks to. It passes calls on to the worker, which does everything else.

The kubelet repeats a failed preparation only after 60 to 90 seconds, and restarts a container that has ended after
longer and longer pauses. So a worker that is killed or crashes is started again at once, and calls that it has not
answered are repeated: all of them may be. This process reads no message and has nothing to go wrong with.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time

import grpc

from nvc.kubernetes.rpc import GRACE, Socket
from nvc.wake import Wake

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from nvc.kubernetes.sockets import Places

#: The last word of a worker's command line: its parent, and the descriptor to write to when it serves claims.
WORKER = "--worker"
#: Seconds that a call may take in all, less than the 45 that the kubelet waits; and between two starts of a worker.
PATIENCE, AGAIN = 40.0, 1.0
STREAMS = ("NodeWatchResources",)
_OPTIONS = (
    ("grpc.default_authority", "localhost"),
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 20),
    ("grpc.max_reconnect_backoff_ms", 100),
)


class Relay(grpc.GenericRpcHandler):
    """Answers every call with what the worker answers, byte for byte."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        """The handler of any method."""
        name = str(details.method)
        if name.endswith(STREAMS):
            return grpc.unary_stream_rpc_method_handler(lambda data, context: self._stream(name, data, context))
        return grpc.unary_unary_rpc_method_handler(lambda data, context: self._call(name, data, context))

    def _call(self, name: str, data: bytes, context: grpc.ServicerContext) -> bytes:
        ask: Any = self.channel.unary_unary(name)
        end = time.monotonic() + min(PATIENCE, context.time_remaining() or PATIENCE)
        while True:
            left = end - time.monotonic()
            try:
                return bytes(ask(data, timeout=max(left, 0.0), wait_for_ready=True))
            except grpc.RpcError as error:
                if left <= 0 or error.code() != grpc.StatusCode.UNAVAILABLE:
                    context.abort(error.code(), error.details() or "")

    def _stream(self, name: str, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        ask: Any = self.channel.unary_stream(name)
        messages = ask(data, wait_for_ready=True)
        context.add_callback(messages.cancel)
        try:
            yield from messages
        except grpc.RpcError as error:
            context.abort(error.code(), error.details() or "")  # the kubelet asks again after 5 seconds


class Front:
    """The kubelet's sockets, and the worker behind them."""

    def __init__(self, at: Places, state: str) -> None:
        """`state` is the plugin's directory."""
        self.at = at
        self.state = state
        self._wake = Wake()
        self._ended = False
        self._opening = threading.Lock()  # for the sockets, and whether there shall be more
        self._sockets: list[Socket] = []
        self._closed = False
        self._ready, self._told = os.pipe()
        os.set_inheritable(self._told, True)
        self._served = threading.Thread(target=self._serve, name="serve", daemon=True)

    def run(self) -> int:
        """Until a signal, or until the worker ends by itself; the exit code."""
        self._wake.obey((signal.SIGTERM, signal.SIGINT), self._end)
        self._served.start()
        while not self._ended:
            began = time.monotonic()
            code = self._work()
            if self._ended:
                return 0 if code in (0, -signal.SIGTERM) else abs(code)
            if code >= 0:
                return code  # it has said why
            sys.stderr.write(f"nvc-kubelet-plugin: the worker was ended by signal {-code} and is started again\n")
            self._wake.wait(AGAIN - (time.monotonic() - began))
        return 0

    def _work(self) -> int:
        """Start a worker; its exit code, or its signal below 0."""
        command = [sys.executable, *sys.orig_argv[1:], f"{WORKER}={os.getpid()},{self._told}"]
        with subprocess.Popen(command, pass_fds=(self._told,)) as worker:
            process = os.pidfd_open(worker.pid)
            try:
                while worker.poll() is None:
                    if self._ended and not self._closed:
                        self._close()
                        worker.terminate()
                    else:
                        self._wake.wait(fd=process)
            finally:
                os.close(process)
            return worker.wait()

    def _end(self) -> None:
        """Called by a signal."""
        self._ended = True

    def _close(self) -> None:
        """Take no new calls, and wait for those that have begun: the worker answers them."""
        with self._opening:
            self._closed = True
        while self._sockets:
            self._sockets.pop().stop(GRACE)

    def _serve(self) -> None:
        """Open the kubelet's sockets once a worker serves claims: the kubelet calls at once."""
        os.read(self._ready, 1)
        relay = Relay(grpc.insecure_channel(f"unix:{self.at.inner}", _OPTIONS))
        with open(f"{self.state}/lock", "a", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for path in self.at.dead():
                os.unlink(path)  # of a plugin that was killed; the kubelet would try to reach it for ever
            for path in (self.at.endpoint, self.at.registration):
                with self._opening:
                    if not self._closed:
                        self._sockets.append(Socket(path, {}, relay))
