"""The HTTP server of metrics, which also says to kubelet's probes whether the plugin lives."""

from __future__ import annotations

import http.server
import socket
import threading
from contextlib import suppress
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from nvc.base.errors import InitializationError
from nvc.kubernetes.health.metrics import Collector

#: Seconds that a client may take to say what it wants.
PATIENCE = 10
#: Connections, each of which has a thread.
CONNECTIONS = 32


class Web:
    """Serves `/metrics` and `/healthz` from the start."""

    def __init__(self, address: str, collector: Collector) -> None:
        """`address` is ADDR:PORT. Raises InitializationError."""
        registry = CollectorRegistry()
        registry.register(collector)

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = PATIENCE

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                status, body = 200, b"ok\n"
                if path in ("/", "/metrics"):
                    body = generate_latest(registry)
                elif path != "/healthz":
                    status, body = 404, b""
                self.send_response(status)
                self.send_header("Content-Type", CONTENT_TYPE_LATEST)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Scrapes are no news."""

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_INET6 if address.startswith("[") else socket.AF_INET
            request_queue_size = 1024
            connections: dict[Any, None] = {}

            def process_request(self, request: Any, client_address: Any) -> None:
                """The oldest is closed for one more: who says nothing keeps no place from the others."""
                if len(self.connections) >= CONNECTIONS:
                    with suppress(OSError, IndexError):  # it has ended meanwhile
                        oldest = [*self.connections][0]
                        self.connections.pop(oldest, None)
                        oldest.shutdown(socket.SHUT_RDWR)
                self.connections[request] = None
                super().process_request(request, client_address)

            def shutdown_request(self, request: Any) -> None:
                self.connections.pop(request, None)
                super().shutdown_request(request)

        host, _, port = address.rpartition(":")
        try:
            self._server = Server((host.strip("[]"), int(port)), Handler)
        except (OSError, OverflowError) as error:
            raise InitializationError("serve metrics", address, error, "choose another --metrics-listen") from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Serve no longer."""
        self._server.shutdown()
        self._server.server_close()
