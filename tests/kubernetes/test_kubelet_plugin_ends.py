"""nvc-kubelet-plugin as a process: when it ends, and what it says then."""

from __future__ import annotations

import os
import signal

import pytest
from support import PATIENCE
from support.apiserver import ApiServer
from support.kubelet import DRIVER, Kubelet, Plugin


def test_a_file_where_the_socket_belongs(
    stage: str, scratch: str, driver: str, api: ApiServer, kubelet: Kubelet
) -> None:
    """Without its sockets the kubelet would never find the plugin: it ends, and says why."""
    path = f"{kubelet.registry}/{DRIVER}-reg.sock"
    with open(path, "x", encoding="ascii"):
        plugin = Plugin(stage, scratch, driver, kubelet, api)
    plugin.start("--mode=dra")
    assert plugin.process is not None
    code = plugin.process.wait(PATIENCE)
    plugin.kill()
    with open(plugin.log, encoding="utf-8") as log:
        said = log.read()
    assert code == 1 and f"{path}: is there and not a socket" in said, (code, said)


@pytest.mark.parametrize("whose", ["front", "worker"])
def test_sigterm_that_another_thread_takes(plugin: Plugin, whose: str) -> None:
    """gRPC has threads of its own, and the kernel gives the signal to one of them now and then."""
    assert plugin.process is not None
    pid = plugin.process.pid if whose == "front" else plugin.worker()
    os.kill(plugin.threads(pid)[0], signal.SIGTERM)
    assert plugin.process.wait(PATIENCE) == 0
