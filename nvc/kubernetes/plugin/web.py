"""The HTTP server of metrics, which also says to kubelet's probes whether the plugin lives."""

from __future__ import annotations

import http.server
import socket
import threading

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from nvc.base.errors import InitializationError
from nvc.kubernetes.health.metrics import Collector

#: Seconds that a client may take to say what it wants.
PATIENCE = 10


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
