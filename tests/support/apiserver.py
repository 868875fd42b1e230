"""An API server for one node: HTTPS, objects in memory, versions and conflicts, and answers of a test."""

from __future__ import annotations

import http.server
import json
import os
import re
import ssl
import threading
import urllib.parse
import uuid
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
        self.requests: list[str] = []  # METHOD PATH
        self.agents: set[str] = set()
        self._version = 0
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
            self._version += 1
            meta = value.setdefault("metadata", {})
            meta.setdefault("uid", str(uuid.uuid4()))
            meta["resourceVersion"] = str(self._version)
            self.objects[path] = value
            self._changed.notify_all()
            return value

    def remove(self, path: str) -> None:
        with self._changed:
            del self.objects[path]
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

    def _answer(self, method: str, target: str, body: bytes) -> tuple[int, dict[str, Any]]:
        path, _, query = target.partition("?")
        with self._changed:
            self.requests.append(f"{method} {path}")
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
            wanted = urllib.parse.parse_qs(query).get("fieldSelector", [""])[0]
            pairs = [part.partition("=") for part in wanted.split(",") if part]
            items = [
                one for one in self.slices()
                if all(one["spec"][name.removeprefix("spec.")] == value for name, _, value in pairs)
            ]  # fmt: skip
            return 200, {"items": items}
        if method == "POST":
            value = json.loads(body)
            path = f"{path}/{value['metadata']['name']}"
            return (409, {"message": "exists"}) if path in self.objects else (201, self.put(path, value))
        old = self.objects.get(path)
        if old is None:
            return 404, {"kind": "Status", "message": f"{path} not found"}
        if method == "PUT":
            value = json.loads(body)
            if value["metadata"].get("resourceVersion") != old["metadata"]["resourceVersion"]:
                return 409, {"kind": "Status", "message": "the object has been modified"}
            value["metadata"]["uid"] = old["metadata"]["uid"]
            return 200, self.put(path, value)
        if method == "DELETE":
            self.remove(path)
        return 200, old

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                server.agents.add(self.headers.get("User-Agent", ""))
                if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    status, answer = 401, {"message": "Unauthorized"}
                else:
                    status, answer = server._answer(self.command, self.path, body)
                if status == HANG:
                    server._closing.wait()
                if status < 0:
                    self.close_connection = True
                    return
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_DELETE = _serve

            def log_message(self, *_: object) -> None:
                """Nobody reads it."""

        return Handler


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
