"""The life of the plugin: it registers, and answers the runtime's calls one after another until that ends it.

A container whose annotations cannot be met is refused: the runtime shows the error's line, and does not create it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from nvc.base.errors import NvcError, unforeseen
from nvc.frontends.nri.protocol import nri_pb2 as nri
from nvc.frontends.nri.protocol import ttrpc_pb2 as ttrpc
from nvc.frontends.nri.wire import PLUGIN, REQUEST, RESPONSE, RUNTIME, STEP, Message, NriError, Wire

NAME = "nvc"
SERVICES = "nri.pkg.api.v1alpha1."
#: The one event that the plugin wants to be asked about: the fourth of the protocol's list.
CREATE_CONTAINER = 1 << 3
#: Codes of gRPC.
INVALID_ARGUMENT, UNIMPLEMENTED, INTERNAL = 3, 12, 13
_REGISTER = 1  # stream of the plugin's one call


class Plugin:
    """One connection to a runtime."""

    def __init__(
        self, wire: Wire, path: str, adjust: Callable[[Any, Any], Any], log: Callable[[str], None]
    ) -> None:
        """`adjust` makes a ContainerAdjustment of pod and container, or None where it asks for nothing.

        It raises NvcError where the container must not be created.
        """
        self._wire = wire
        self._path = path
        self._adjust = adjust
        self._log = log
        self._runtime = ""
        self._news = ""  # to be logged once the answer is sent
        self._timeout = 0.0  # seconds that the runtime waits; 0: it has not said
        self._ended = False
        self._methods: dict[str, Callable[[bytes], Any]] = {
            "Configure": self._configure,
            "Synchronize": self._synchronize,
            "CreateContainer": self._create,
            "StateChange": lambda _: nri.Empty(),
            "Shutdown": self._shutdown,
        }

    def serve(self, index: str) -> None:
        """Register under `index` and answer until the runtime ends it. Raises NriError."""
        payload = nri.RegisterPluginRequest(plugin_name=NAME, plugin_idx=index).SerializeToString()
        call = ttrpc.Request(service=f"{SERVICES}Runtime", method="RegisterPlugin", payload=payload)
        self._wire.send(Message(RUNTIME, _REGISTER, REQUEST, call.SerializeToString()))
        while not self._ended:
            message = self._wire.receive()
            if message is None:
                raise NriError(STEP, self._path, "the runtime has closed the socket")
            if message.connection == PLUGIN and message.kind == REQUEST:
                self._wire.send(message.replace(kind=RESPONSE, data=self._answer(message.data)))
                if self._news:
                    self._log(self._news)
                    self._news = ""
            elif message.connection == RUNTIME and message.kind == RESPONSE:
                self._registered(message.data)

    def _registered(self, data: bytes) -> None:
        status = self._parsed(ttrpc.Response, data).status
        if status.code:
            raise NriError("register with the runtime", self._path, status.message)

    def _answer(self, data: bytes) -> bytes:
        """The response to a call: what its method returns, or why it fails."""
        call = self._parsed(ttrpc.Request, data)
        method = self._methods.get(call.method) if call.service == f"{SERVICES}Plugin" else None
        if method is None:
            status = ttrpc.Status(code=UNIMPLEMENTED, message=f"no method {call.service[:80]}/{call.method[:80]}")
        else:
            try:
                payload = method(call.payload).SerializeToString()
                return ttrpc.Response(payload=payload).SerializeToString()
            except NvcError as error:
                status = ttrpc.Status(code=INVALID_ARGUMENT, message=error.line())
            except Exception as error:  # whatever it is, the container must not start without what it asked for
                status = ttrpc.Status(code=INTERNAL, message=unforeseen(error).line())
            self._log(f"{call.method}: {status.message}")
        return ttrpc.Response(status=status).SerializeToString()

    def _parsed(self, kind: Any, data: bytes) -> Any:
        try:
            return kind.FromString(data)
        except DecodeError:
            raise NriError(STEP, self._path, "a message that is not one of the protocol") from None

    def _configure(self, data: bytes) -> Any:
        request = nri.ConfigureRequest.FromString(data)
        self._timeout = request.request_timeout / 1000
        self._runtime = f"{request.runtime_name[:80]} {request.runtime_version[:80]}"
        return nri.ConfigureResponse(events=CREATE_CONTAINER)

    def _synchronize(self, data: bytes) -> Any:
        """What runs already keeps what it has. After the last part the runtime asks about new containers."""
        more = nri.SynchronizeRequest.FromString(data).more
        if not more:
            self._news = f"registered with {self._runtime}: ready"
        return nri.SynchronizeResponse(more=more)

    def _shutdown(self, _: bytes) -> Any:
        self._ended = True
        return nri.Empty()

    def _create(self, data: bytes) -> Any:
        request = nri.CreateContainerRequest.FromString(data)
        begun = time.monotonic()
        response = nri.CreateContainerResponse()
        made = self._adjust(request.pod, request.container)
        if made is not None:
            response.adjust.CopyFrom(made)
        taken = time.monotonic() - begun
        if self._timeout and taken > self._timeout:
            self._log(
                f"{request.pod.namespace}/{request.pod.name}: {taken:.1f} s, and the runtime waits for "
                f"{self._timeout:g} s: the container has started without a GPU"
            )
        return response
