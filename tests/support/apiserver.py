"""An API server for one node: HTTPS, objects in memory, versions, conflicts, watches, and answers of a test."""

from __future__ import annotations

import http.server
import json
import os
import re
import ssl
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable
from typing import Any

from . import PATIENCE, need, run

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"
TOKEN = "a-token-of-the-node"
HANG, CLOSE = -1, -2  # in place of a status: no answer until the server ends; the connection is closed


class ApiServer:
    """`server.objects` has every object by its path. To be closed."""

    def __init__(self, directory: str, served: bool = True) -> None:
        """`served`: it has resource.k8s.io/v1."""
        self.directory = directory
        self.served = served
        self.objects: dict[str, dict[str, Any]] = {}
        self.requests: list[str] = []  # METHOD PATH; the method of a watch is WATCH
        self.when: list[float] = []  # of each request, by the monotonic clock
        self.watch_seconds = -1.0  # what a watch lasts, in place of what the client asks for
        self.watches = 0  # that go on now
        self.agents: set[str] = set()
        self.keeps_devices = True  # DRAResourceClaimDeviceStatus
        self.version = 0  # of the last change
        self._oldest = 0  # version after which changes are still known
        self._events: list[tuple[int, str, dict[str, Any] | None, bytes]] = []  # version, path, object, line
        self._specs: dict[str, str] = {}
        self._applied: dict[tuple[str, str], set[tuple[Any, ...]]] = {}  # by object and manager: entries
        self._epoch = 0  # of watches: those of an older one end
        self._made_up: list[tuple[re.Pattern[str], int]] = []
        self._failing: tuple[re.Pattern[str], int] | None = None
        self._changed = threading.Condition()
        self._closing = threading.Event()
        os.makedirs(directory)
        self._certificate()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{directory}/cert.pem", f"{directory}/key.pem")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._closing.set()
        self.end_watches()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def kubeconfig(self) -> str:
        """The path of a file that kubectl would take."""
        path = f"{self.directory}/kubeconfig"
        with open(path, "w", encoding="ascii") as file:
            file.write(
                f"""apiVersion: v1
kind: Config
clusters:
- name: test
  cluster:
    server: https://127.0.0.1:{self.port}
    certificate-authority: cert.pem
users:
- name: plugin
  user:
    token: {TOKEN}
contexts:
- name: here
  context:
    cluster: test
    user: plugin
current-context: here
"""
            )
        return path

    def make_up(self, pattern: str, *statuses: int) -> None:
        """Answer the next requests whose `METHOD PATH` matches with these statuses, one each."""
        with self._changed:
            self._made_up += [(re.compile(pattern), status) for status in statuses]

    def fail(self, pattern: str, status: int) -> None:
        """Answer every request whose `METHOD PATH` matches with this status from now on; 0: no longer."""
        with self._changed:
            self._failing = (re.compile(pattern), status) if status else None

    def put(self, path: str, value: dict[str, Any]) -> dict[str, Any]:
        """Keep an object, as a new version of it."""
        with self._changed:
            self.version += 1
            meta = value.setdefault("metadata", {})
            meta.setdefault("uid", str(uuid.uuid4()))
            meta["resourceVersion"] = str(self.version)
            spec = json.dumps(value.get("spec"))
            before = self.objects[path]["metadata"]["generation"] if path in self.objects else 0
            meta["generation"] = before + (not before or spec != self._specs[path])
            self._specs[path] = spec
            self._tell("MODIFIED" if path in self.objects else "ADDED", path, value)
            self.objects[path] = value
            self._changed.notify_all()
            return value

    def remove(self, path: str) -> None:
        with self._changed:
            value = self.objects.pop(path)
            self.version += 1
            meta = {**value["metadata"], "resourceVersion": str(self.version)}
            self._tell("DELETED", path, {**value, "metadata": meta})
            self._changed.notify_all()

    def _tell(self, kind: str, path: str, value: dict[str, Any]) -> None:
        line = json.dumps({"type": kind, "object": value}).encode() + b"\n"
        self._events.append((self.version, path, json.loads(json.dumps(value)), line))

    def say(self, line: bytes) -> None:
        """Send a line to those who watch."""
        with self._changed:
            self._events.append((self.version, "", None, line))
            self._changed.notify_all()

    def bookmark(self) -> None:
        """Tell those who watch the version of now."""
        value = {"kind": "ResourceSlice", "metadata": {"resourceVersion": str(self.version)}}
        self.say(json.dumps({"type": "BOOKMARK", "object": value}).encode() + b"\n")

    def compact(self) -> None:
        """Forget all changes up to now."""
        with self._changed:
            self._oldest = self.version

    def end_watches(self) -> None:
        """Close those that go on."""
        with self._changed:
            self._epoch += 1
            self._changed.notify_all()

    def node(self, name: str) -> None:
        self.put(f"/api/v1/nodes/{name}", {"kind": "Node", "metadata": {"name": name}})

    def slices(self) -> list[dict[str, Any]]:
        """The ResourceSlices, by name."""
        with self._changed:
            found = [value for path, value in self.objects.items() if path.startswith(SLICES)]
        return sorted(found, key=lambda value: str(value["metadata"]["name"]))

    def wait(self, found: Any) -> Any:
        """What `found()` gives once it is true; looked at after each change."""
        with self._changed:
            assert self._changed.wait_for(lambda: bool(found()), PATIENCE), "it did not come about"
        return found()

    def _certificate(self) -> None:
        run(
            need("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", f"{self.directory}/key.pem", "-out", f"{self.directory}/cert.pem", "-days", "2",
            "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
        )  # fmt: skip

    def _watch(self, target: str, send: Callable[[bytes], object]) -> None:
        """Send what has changed after a version, and what changes."""
        path, _, query = target.partition("?")
        words = urllib.parse.parse_qs(query)
        since, seconds = int(words["resourceVersion"][0]), float(words["timeoutSeconds"][0])
        if self.watch_seconds >= 0:
            seconds = self.watch_seconds
        end, at = time.monotonic() + seconds, 0
        with self._changed:
            epoch = self._epoch
            if since < self._oldest:
                status = {"kind": "Status", "code": 410, "message": "too old resource version"}
                send(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
                return
            at = next((at for at, event in enumerate(self._events) if event[0] > since), len(self._events))
            self.watches += 1
            self._changed.notify_all()
        try:
            while True:
                with self._changed:
                    while self._epoch == epoch and len(self._events) == at:
                        if not self._changed.wait(max(0.0, end - time.monotonic())):
                            return
                    if self._epoch != epoch:
                        return
                    version, where, value, line = self._events[at]
                    at += 1
                if value is None or (where.startswith(f"{path}/") and _selected(query, value)):
                    send(line)
        finally:
            with self._changed:
                self.watches -= 1
                self._changed.notify_all()

    def _answer(self, method: str, target: str, body: bytes) -> tuple[int, dict[str, Any]]:
        path, _, query = target.partition("?")
        with self._changed:
            self.requests.append(f"{method} {path}")
            self.when.append(time.monotonic())
            self._changed.notify_all()
            if self._failing is not None and self._failing[0].search(f"{method} {path}"):
                return self._failing[1], {"kind": "Status", "message": "made up by the test"}
            for entry in self._made_up:
                if entry[0].search(f"{method} {path}"):
                    self._made_up.remove(entry)
                    return entry[1], {"kind": "Status", "message": "made up by the test"}
        if path.startswith("/apis/resource.k8s.io/") and not self.served:
            return 404, {"kind": "Status", "message": "the server could not find the requested resource"}
        if path == "/apis/resource.k8s.io/v1":
            return 200, {"kind": "APIResourceList"}
        if method == "GET" and path == SLICES:
            with self._changed:
                items = [one for one in self.slices() if _selected(query, one)]
                return 200, {"items": items, "metadata": {"resourceVersion": str(self.version)}}
        if method == "WATCH":
            return 200, {}
        if method == "POST":
            value = json.loads(body)
            path = f"{path}/{value['metadata']['name']}"
            return (409, {"message": "exists"}) if path in self.objects else (201, self.put(path, value))
        if method == "PATCH":
            return self._apply(path.removesuffix("/status"), query, json.loads(body))
        old = self.objects.get(path)
        if old is None:
            return 404, {"kind": "Status", "message": f"{path} not found"}
        if method == "PUT":
            value = json.loads(body)
            if value["metadata"].get("resourceVersion") != old["metadata"]["resourceVersion"]:
                return 409, {"kind": "Status", "message": "the object has been modified"}
            value["metadata"].update({name: old["metadata"][name] for name in ("uid", "generation")})
            return 200, old if value == old else self.put(path, value)
        if method == "DELETE":
            self.remove(path)
        return 200, old

    def _apply(self, path: str, query: str, value: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Server-side apply of a claim's `status.devices`."""
        old = self.objects.get(path)
        if old is None:
            return 404, {"kind": "Status", "message": f"{path} not found"}
        if value["metadata"]["uid"] != old["metadata"]["uid"]:
            return 409, {"kind": "Status", "message": "another object by now"}
        new = json.loads(json.dumps(old))
        results = new["status"].get("allocation", {}).get("devices", {}).get("results", [])
        mine = {_key(one): one for one in value["status"]["devices"]}
        if not set(map(_key, results)).issuperset(mine):
            return 422, {"kind": "Status", "message": "must be an allocated device in the claim"}
        if self.keeps_devices:
            place = path, urllib.parse.parse_qs(query)["fieldManager"][0]
            there = {_key(one): one for one in new["status"].get("devices", [])}
            for gone in self._applied.get(place, set()) - mine.keys():
                there.pop(gone, None)
            self._applied[place] = set(mine)
            for key, one in mine.items():
                types = {each["type"] for each in one["conditions"]}
                kept = [each for each in there.get(key, {}).get("conditions", []) if each["type"] not in types]
                there[key] = {**there.get(key, {}), **one, "conditions": kept + one["conditions"]}
            new["status"]["devices"] = list(there.values())
        return 200, self.put(path, new)

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                server.agents.add(self.headers.get("User-Agent", ""))
                watch = "watch=true" in self.path
                if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    status, answer = 401, {"message": "Unauthorized"}
                else:
                    status, answer = server._answer("WATCH" if watch else self.command, self.path, body)
                if status == HANG:
                    server._closing.wait()
                if status < 0:
                    self.close_connection = True
                    return
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                if watch and status == 200:
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    server._watch(self.path, lambda line: self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line)))
                    self.wfile.write(b"0\r\n\r\n")
                    return
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

            def log_message(self, *_: object) -> None:
                """Nobody reads it."""

        return Handler


def _key(entry: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(entry.get(name) for name in ("driver", "pool", "device", "shareID"))


def _selected(query: str, value: dict[str, Any]) -> bool:
    """Whether a field selector chooses the object."""
    wanted = urllib.parse.parse_qs(query).get("fieldSelector", [""])[0]
    pairs = [part.partition("=") for part in wanted.split(",") if part]
    return all(value["spec"][name.removeprefix("spec.")] == given for name, _, given in pairs)


def claim(
    name: str,
    results: list[dict[str, Any]],
    requests: list[dict[str, Any]] | None = None,
    config: list[dict[str, Any]] | None = None,
    namespace: str = "ml",
    pod: str = "train",
) -> dict[str, Any]:
    """An allocated ResourceClaim. Without `requests`, one for each result, which names amounts if that has some."""
    if requests is None:
        requests = []
        for result in results:
            exactly: dict[str, Any] = {"deviceClassName": "gpu.nvc.dev"}
            if "consumedCapacity" in result:
                exactly["capacity"] = {"requests": result["consumedCapacity"]}
            requests.append({"name": result["request"], "exactly": exactly})
    return {
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace, "uid": str(uuid.uuid4())},
        "spec": {"devices": {"requests": requests}},
        "status": {
            "allocation": {"devices": {"results": results, "config": config or []}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": str(uuid.uuid4())}],
        },
    }


def result(request: str, device: str, memory: str = "", cores: str = "100", **more: Any) -> dict[str, Any]:
    """One result of an allocation, of a part where `memory` is given."""
    found = {"request": request, "driver": "gpu.nvc.dev", "pool": "node-a", "device": device, **more}
    if memory:
        found["consumedCapacity"] = {"memory": memory, "cores": cores}
        found["shareID"] = str(uuid.uuid4())
    return found


def parameters(source: str = "FromClaim", requests: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    """One entry of an allocation's configuration."""
    value = {"apiVersion": "gpu.nvc.dev/v1alpha1", "kind": "SliceParameters", **fields}
    opaque = {"driver": "gpu.nvc.dev", "parameters": value}
    return {"source": source, "requests": list(requests), "opaque": opaque}
