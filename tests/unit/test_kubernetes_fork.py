"""Children of nvc-kubelet-plugin have one thread, or they could enter no namespace."""

from __future__ import annotations

import sys

from support import STAGE, run

PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[1])
from nvc.kubernetes.plugin import rpc
import grpc
from concurrent.futures import ThreadPoolExecutor

address = f"unix:{sys.argv[2]}"
server = grpc.server(ThreadPoolExecutor(2))
server.add_insecure_port(address)
server.start()
channel = grpc.insecure_channel(address)
grpc.channel_ready_future(channel).result()
for _ in range(8):
    pid = os.fork()
    if pid == 0:
        os._exit(len(os.listdir("/proc/self/task")))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
os._exit(0)
"""


def test_grpc_starts_no_threads_in_a_child(stage: str, scratch: str) -> None:
    done = run(sys.executable, "-c", PROGRAM, f"{STAGE}/lib/nvc/python", f"{scratch}/socket")
    assert done.stdout.split() == ["1"] * 8
