#!/usr/bin/python3
"""Speaks the command language of nvidia-cuda-mps-control, for the simulated driver, which has no MPS.

With -f it is the control daemon: it takes its limits from its environment and answers commands until `quit` or
SIGTERM. A program that MPS_SERVER names is its server: one of tests/native/vgpu_tool.c that uses the device.
Without a word it sends the commands of its standard input and prints the answers.
"""

import os
import signal
import socket
import subprocess
import sys

STUBBORN = "3M"  # of which it makes another limit
PIPE = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")


def serve() -> None:
    def leave(*_: object) -> None:
        raise SystemExit

    signal.signal(signal.SIGTERM, leave)
    percent = float(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"))
    limits = dict(
        item.split("=") for item in os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "").split(",") if item
    )
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{PIPE}/control")
    os.chmod(f"{PIPE}/control", 0o666)
    listener.listen()
    with open(os.environ["CUDA_MPS_LOG_DIRECTORY"] + "/control.log", "w", encoding="ascii") as log:
        log.write(f"devices {os.environ.get('CUDA_VISIBLE_DEVICES')}\n")
    if server := os.environ.get("MPS_SERVER"):
        made = subprocess.Popen([server], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert made.stdin is not None
        made.stdin.write(b"init\nprimary 0\n")
        made.stdin.flush()
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("r") as lines, connection.makefile("w") as stream:
            for line in lines:
                command, *words = line.split()
                if command == "quit":
                    return
                if command == "set_default_active_thread_percentage":
                    percent = float(words[0])
                elif command == "get_default_active_thread_percentage":
                    stream.write(f"{percent:.1f}\n")
                elif command == "set_default_device_pinned_mem_limit":
                    limits[words[0]] = "1G" if words[1] == STUBBORN else words[1]
                elif command == "get_default_device_pinned_mem_limit":
                    stream.write(f"{shown(limits.get(words[0], 'none'))}\n")
                else:
                    stream.write("Unknown command\n")
                stream.flush()


def shown(limit: str) -> str:
    """In the largest unit, as the driver's own does."""
    if limit.endswith("M") and int(limit[:-1]) % 1024 == 0:
        return f"{int(limit[:-1]) // 1024}G"
    return limit


def send() -> int:
    with socket.socket(socket.AF_UNIX) as made:
        try:
            made.connect(f"{PIPE}/control")
        except OSError:
            print("Cannot find MPS control daemon process")
            return 1
        made.sendall(sys.stdin.buffer.read())
        made.shutdown(socket.SHUT_WR)
        while data := made.recv(4096):
            sys.stdout.buffer.write(data)
    return 0


if __name__ == "__main__":
    if "-f" in sys.argv:
        serve()
    else:
        sys.exit(send())
