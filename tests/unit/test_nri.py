"""nvc-nri: the frames of NRI's socket, calls that no runtime should make, and what annotations ask for."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.facts import facts, gpu

from nvc.base.errors import InputError, NvcError
from nvc.frontends.nri import adjust
from nvc.frontends.nri.adjust import adjustment
from nvc.frontends.nri.annotations import DOMAIN, NAMES, asked, request_of
from nvc.frontends.nri.plugin import CREATE_CONTAINER, INTERNAL, INVALID_ARGUMENT, UNIMPLEMENTED, Plugin
from nvc.frontends.nri.protocol import nri_pb2 as nri
from nvc.frontends.nri.protocol import ttrpc_pb2 as ttrpc
from nvc.frontends.nri.wire import (
    CHUNK,
    MESSAGE_MAX,
    PLUGIN,
    REQUEST,
    RESPONSE,
    RUNTIME,
    Message,
    NriError,
    Wire,
    frames,
)
from nvc.request.config import Config
from nvc.request.environment import VARIABLES
from nvc.slices.make import shim

MESSAGES = st.builds(
    Message, st.sampled_from([PLUGIN, RUNTIME]), st.integers(0, 2**32 - 1), st.integers(0, 255),
    st.binary(max_size=3 * CHUNK),
)  # fmt: skip
SERVICE = "nri.pkg.api.v1alpha1.Plugin"
TIMEOUT = 30


class Runtime:
    """The runtime's end of a plugin's socket, spoken by hand."""

    def __init__(self, adjust: Callable[[Any, Any], Any]) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(TIMEOUT)
        self.wire = Wire(self.socket, "test")
        self.logged: list[str] = []
        self.error: BaseException | None = None
        self._theirs = theirs
        plugin = Plugin(Wire(theirs, "/nri.sock"), "/nri.sock", adjust, self.logged.append)
        self._thread = threading.Thread(target=self._run, args=(plugin,))
        self._thread.start()

    def _run(self, plugin: Plugin) -> None:
        try:
            plugin.serve("10")
        except NriError as error:
            self.error = error
        finally:
            self._theirs.close()

    def ended(self) -> str:
        """Why the plugin has ended; "" where it was told to."""
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive()
        self.socket.close()
        return str(self.error or "")

    def call(self, method: str, payload: bytes = b"", service: str = SERVICE) -> Any:
        """The response to one call."""
        data = ttrpc.Request(service=service, method=method, payload=payload).SerializeToString()
        self.wire.send(Message(PLUGIN, 1, REQUEST, data))
        answer = self.wire.receive()
        assert answer is not None and (answer.connection, answer.stream, answer.kind) == (PLUGIN, 1, RESPONSE)
        return ttrpc.Response.FromString(answer.data)


@pytest.fixture
def runtime() -> Iterator[Callable[..., Runtime]]:
    """Factory: a runtime with a plugin that has sent its registration."""
    made: list[Runtime] = []

    def make(adjust: Callable[[Any, Any], Any] = lambda *_: None) -> Runtime:
        found = Runtime(adjust)
        made.append(found)
        message = found.wire.receive()
        assert message is not None and message.connection == RUNTIME
        call = ttrpc.Request.FromString(message.data)
        assert (call.service, call.method) == ("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin")
        register = nri.RegisterPluginRequest.FromString(call.payload)
        assert (register.plugin_name, register.plugin_idx) == ("nvc", "10")
        return found

    yield make
    for one in made:
        one.socket.close()
        one._thread.join(TIMEOUT)


@given(st.lists(MESSAGES, max_size=4), st.integers(1, 64))
def test_what_is_sent_is_received(messages: list[Message], size: int) -> None:
    """However frames cut it. None is longer than runtimes read at once."""
    data = b"".join(map(frames, messages))
    recut = b""
    place = 0
    while place < len(data):
        connection, length = struct.unpack_from(">II", data, place)
        assert length <= CHUNK
        body = data[place + 8 : place + 8 + length]
        cut = max(size, length // 8)
        for at in range(0, length, cut):
            part = body[at : at + cut]
            recut += struct.pack(">II", connection, len(part)) + part
        place += 8 + length
    ours, theirs = socket.socketpair()
    with ours, theirs:
        writer = threading.Thread(target=lambda: (theirs.sendall(recut), theirs.shutdown(socket.SHUT_WR)))
        writer.start()
        wire = Wire(ours, "test")
        received = []
        while (message := wire.receive()) is not None:
            received.append(message)
        writer.join()
    for connection in (PLUGIN, RUNTIME):
        assert [one for one in received if one.connection == connection] == [
            one for one in messages if one.connection == connection
        ]


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "the runtime has closed the socket"),
        (b"\0\0\0", "in the middle of a message"),
        (struct.pack(">II", PLUGIN, 20) + b"x", "in the middle of a message"),
        (struct.pack(">II", PLUGIN, 3) + b"xyz", "in the middle of a message"),
        (struct.pack(">II", PLUGIN, 2**32 - 1), "a frame of 4294967295 bytes"),
        (struct.pack(">II", 7, MESSAGE_MAX + 11), "a frame of"),
        (struct.pack(">IIIIBB", PLUGIN, 10, MESSAGE_MAX + 1, 1, REQUEST, 0), "a message of"),
        (frames(Message(PLUGIN, 1, REQUEST, b"\xff\xff")), "not one of the protocol"),
        (frames(Message(RUNTIME, 1, RESPONSE, b"\xff")), "not one of the protocol"),
    ],
)
def test_a_socket_that_closes_or_says_nonsense(
    runtime: Callable[..., Runtime], data: bytes, cause: str
) -> None:
    """The plugin ends with one line. The runtime gives no container anything of a plugin that has ended."""
    made = runtime()
    made.socket.sendall(data)
    made.socket.shutdown(socket.SHUT_WR)
    assert cause in made.ended()


@pytest.mark.parametrize("kept", [0, 1])
def test_a_socket_that_closes_while_a_container_is_decided(runtime: Callable[..., Runtime], kept: int) -> None:
    """The plugin ends with one line, also if the runtime has left a part of its next call."""

    def close(*_: object) -> None:
        made.socket.sendall(b"\0\0\0"[:kept])
        made.socket.shutdown(socket.SHUT_RDWR)

    made = runtime(close)
    payload = nri.CreateContainerRequest().SerializeToString()
    call = ttrpc.Request(service=SERVICE, method="CreateContainer", payload=payload)
    made.wire.send(Message(PLUGIN, 1, REQUEST, call.SerializeToString()))
    assert made.ended() == "nri error: speak NRI: /nri.sock: broken pipe; see the runtime's log"
    assert made.logged == []


def test_the_registration_is_refused(runtime: Callable[..., Runtime]) -> None:
    made = runtime()
    status = ttrpc.Status(code=2, message="invalid name")
    made.wire.send(Message(RUNTIME, 1, RESPONSE, ttrpc.Response(status=status).SerializeToString()))
    assert "register with the runtime: /nri.sock: invalid name" in made.ended()


def test_the_course_of_a_connection(runtime: Callable[..., Runtime]) -> None:
    made = runtime()
    request = nri.ConfigureRequest(runtime_name="containerd", runtime_version="v2", request_timeout=2000)
    answer = made.call("Configure", request.SerializeToString())
    assert nri.ConfigureResponse.FromString(answer.payload).events == CREATE_CONTAINER
    for more in (True, False):
        answer = made.call("Synchronize", nri.SynchronizeRequest(more=more).SerializeToString())
        assert nri.SynchronizeResponse.FromString(answer.payload).more is more
    assert made.call("StateChange").status.code == 0
    assert made.call("UpdateContainer").status.code == UNIMPLEMENTED
    assert made.call("CreateContainer", service="other").status.code == UNIMPLEMENTED
    answer = made.call("CreateContainer", nri.CreateContainerRequest().SerializeToString())
    assert not nri.CreateContainerResponse.FromString(answer.payload).HasField("adjust")
    assert made.call("Shutdown").status.code == 0
    assert made.ended() == ""


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("annotation x", "y", "z"), INVALID_ARGUMENT, "input error: annotation x: y: z [NVC-1001"),
        (ValueError("surprise"), INTERNAL, "ValueError: surprise"),
        (OSError(28, "No space left on device"), INTERNAL, "host error"),
    ],
)
def test_whatever_fails_refuses_the_container(
    runtime: Callable[..., Runtime], error: Exception, code: int, said: str
) -> None:
    """And the next call is answered."""

    def fail(*_: object) -> None:
        raise error

    made = runtime(fail)
    status = made.call("CreateContainer", nri.CreateContainerRequest().SerializeToString()).status
    assert status.code == code and said in status.message
    assert made.call("CreateContainer", b"\xff\xff").status.code == INTERNAL
    assert len(made.logged) == 2


@given(
    st.dictionaries(
        st.one_of(st.text(max_size=40), st.text(max_size=20).map(lambda text: DOMAIN + text),
                  st.sampled_from([DOMAIN + name for name in NAMES])),
        st.text(max_size=200), max_size=6,
    )
)  # fmt: skip
def test_annotations_of_any_shape(annotations: dict[str, str]) -> None:
    """A request, or an error of ours."""
    try:
        wanted = asked(annotations, "main")
        if wanted is not None:
            assert set(wanted) <= set(NAMES)
            request_of(wanted, ("NVC_VGPU_MEMORY=1TiB", "=", "x"), Config())
    except NvcError as error:
        assert "\n" not in str(error)


def test_the_operators_bounds_hold() -> None:
    """As for variables; and settings that concern variables alone do not let a pod out of its slice."""
    config = Config(vgpu_variables="ignore", accept_environment_unprivileged=False, swarm_resource=("X",))
    found = request_of({"devices": "0", "memory": "10GiB"}, ("X=1",), config)
    assert found.devices == ("0",) and found.vgpu is not None and found.vgpu.memory[0].bytes == 10 << 30
    limited = request_of({"devices": "0"}, (), Config(vgpu_memory_max="4GiB"))
    assert limited.vgpu is not None and limited.vgpu.largest is not None
    own = [f"{row.name.replace('*', 'MEMORY')}=1" for row in VARIABLES if not row.need]
    assert request_of({"devices": "0"}, own, Config()) == request_of({"devices": "0"}, (), Config())


def test_a_slice_has_the_period_that_is_asked_for_and_the_operator_s_isolation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shim, "current", lambda: ())
    config = Config(vgpu_isolation="kernel")
    wanted = {"devices": "0", "memory": "10GiB", "cores": "25", "period": "40ms"}
    request = request_of(wanted, (), config)
    assert request.vgpu is not None
    slicing = adjust._slicing(facts(gpus=(gpu(0, "GPU-a", memory=80 << 10),)), request, request.vgpu, config)
    ((_, part),) = slicing.parts
    assert (part.cores, part.period_us, part.isolation) == (25, 40_000, "kernel")


def test_an_adjustment_says_all_of_the_edits() -> None:
    """Groups cannot be said; in a user namespace a node of another root is bound."""
    node = {"path": "/dev/nvidia0", "hostPath": "/sim/dev/nvidia0", "type": "c", "major": 195, "minor": 0,
            "fileMode": 0o660, "gid": 44, "permissions": "rw"}  # fmt: skip
    hook = {"hookName": "createContainer", "path": "/h", "args": ["h", "x"], "env": ["PATH=/bin"]}
    mount = {"hostPath": "/a", "containerPath": "/b", "options": ["ro", "rbind"]}
    edits = ({"env": ["A=b=c"], "deviceNodes": [node], "hooks": [hook], "mounts": [mount]},)
    made = adjustment(edits, user_namespace=False)
    (device,) = made.linux.devices
    assert (device.path, device.type, device.major, device.minor) == ("/dev/nvidia0", "c", 195, 0)
    assert (device.file_mode.value, device.gid.value, device.HasField("uid")) == (0o660, 44, False)
    assert [(entry.key, entry.value) for entry in made.env] == [("A", "b=c")]
    assert [(one.source, one.destination, one.type) for one in made.mounts] == [("/a", "/b", "bind")]
    assert [(one.path, list(one.env)) for one in made.hooks.create_container] == [("/h", ["PATH=/bin"])]
    bound = adjustment(edits, user_namespace=True)
    assert not bound.linux.devices and bound.mounts[0].source == "/sim/dev/nvidia0"
