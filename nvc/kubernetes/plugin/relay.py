"""Passes the kubelet's calls on to the worker, byte for byte, and repeats those that a worker has left unanswered.

Each call is a task of the one event loop, without a thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from nvc.kubernetes.plugin.rpc import SocketPath, in_loop

#: Seconds that a call may take in all, less than the 45 that the kubelet waits.
PATIENCE = 40.0
STREAMS = ("NodeWatchResources",)
_OPTIONS = (
    ("grpc.default_authority", "localhost"),
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 20),
    ("grpc.max_reconnect_backoff_ms", 100),
)


class _Calls(grpc.GenericRpcHandler):
    """Answers every call with what the worker answers."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self._streams: set[Any] = set()
        self._ended = False

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        name = str(details.method)

        async def call(data: bytes, context: Any) -> bytes:
            return await self._call(name, data, context)

        async def stream(data: bytes, context: Any) -> AsyncIterator[bytes]:
            async for message in self._stream(name, data, context):
                yield message

        return (
            grpc.unary_stream_rpc_method_handler(stream)
            if name.endswith(STREAMS)
            else grpc.unary_unary_rpc_method_handler(call)
        )

    async def _call(self, name: str, data: bytes, context: Any) -> bytes:
        ask: Any = self.channel.unary_unary(name)
        end = time.monotonic() + min(PATIENCE, context.time_remaining() or PATIENCE)
        while True:
            left = end - time.monotonic()
            try:
                return bytes(await ask(data, timeout=max(left, 0.0), wait_for_ready=True))
            except grpc.aio.AioRpcError as error:
                if left <= 0 or error.code() != grpc.StatusCode.UNAVAILABLE:
                    await context.abort(error.code(), error.details() or "")

    async def _stream(self, name: str, data: bytes, context: Any) -> AsyncIterator[bytes]:
        ask: Any = self.channel.unary_stream(name)
        messages = ask(data, wait_for_ready=True)
        self._streams.add(messages)
        try:
            async for message in messages:
                yield message
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")  # the kubelet asks again after 5 seconds
        except asyncio.CancelledError:
            if not self._ended:
                raise  # by the kubelet
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the plugin ends")
        finally:
            self._streams.discard(messages)
            messages.cancel()

    def end_streams(self) -> None:
        self._ended = True
        for messages in tuple(self._streams):
            messages.cancel()


class Relay:
    """A server at the kubelet's sockets."""

    def __init__(self, inner: str, paths: tuple[str, ...]) -> None:
        """Serves `paths` from here on; `inner` is the worker's socket. Raises InitializationError with a path."""
        self._paths = [SocketPath(path) for path in paths]
        in_loop(self._start(inner))

    async def _start(self, inner: str) -> None:
        self._calls = _Calls(grpc.aio.insecure_channel(f"unix:{inner}", _OPTIONS))
        self._server = grpc.aio.server(options=(("grpc.max_send_message_length", -1),))
        self._server.add_generic_rpc_handlers((self._calls,))
        for path in self._paths:
            path.bind(self._server)
        await self._server.start()

    async def _stop(self, grace: float) -> None:
        self._calls.end_streams()
        await self._server.stop(grace)

    def stop(self, grace: float) -> None:
        """Take no new calls and end streams, wait up to `grace` seconds for other calls, and remove the sockets."""
        for path in self._paths:
            path.remove()
        in_loop(self._stop(grace))
