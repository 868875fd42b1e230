#!/usr/bin/python3
"""Speaks the command language of nvidia-cuda-mps-control, for the simulated driver.

For the first client of native/simdriver/cuda/mps.c it starts a server, which has all of them until one causes a
fault. MPS_CLIENTS is how many it takes.

It takes its limits from its environment and answers commands until `quit` or SIGTERM. A program that MPS_SERVER
names is its server: one of tests/native/vgpu_tool.c that uses the device. What sends the commands is
tests/native/mps_control.c, which starts this too.
"""

import array
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from typing import Any

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
    say("Control", f"devices {os.environ.get('CUDA_VISIBLE_DEVICES')}")
    if server := os.environ.get("MPS_SERVER"):
        made = subprocess.Popen([server], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert made.stdin is not None
        made.stdin.write(b"init\nprimary 0\n")
        made.stdin.flush()
    clients = socket.socket(socket.AF_UNIX)
    if "-M" in sys.argv:  # of all users
        clients.bind(f"{PIPE}/client")
        os.chmod(f"{PIPE}/client", 0o666)
        clients.listen()
    shared = Server()
    while True:
        ready, _, _ = select.select([listener, clients] if "-M" in sys.argv else [listener], [], [], 0.05)
        shared.look()
        if clients in ready:
            shared.take(clients.accept()[0])
        if listener not in ready:
            continue
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
                elif command == "get_server_list":
                    stream.write(f"{shared.pid}\n" if shared.pid else "")
                elif command in ("get_server_status", "get_client_list"):
                    found = (
                        shared.ask() if int(words[0]) == shared.pid else {"state": "INVALID", "clients": []}
                    )
                    lines_of = [found["state"]] if command == "get_server_status" else found["clients"]
                    stream.write("".join(f"{one}\n" for one in lines_of))
                else:
                    stream.write("Unknown command\n")
                stream.flush()


class Server:
    """nvidia-cuda-mps-server, as its control daemon sees it."""

    def __init__(self) -> None:
        self.pid = 0

    def look(self) -> None:
        if self.pid and os.waitpid(self.pid, os.WNOHANG)[0]:
            self.pid = 0

    def take(self, client: socket.socket) -> None:
        if not self.pid:
            self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.pid = os.fork()
            if not self.pid:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                self.channel.close()
                work(theirs)
            theirs.close()
        fds = array.array("i", [client.fileno()])
        self.channel.sendmsg([b"client"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        client.close()

    def ask(self) -> Any:
        try:
            self.channel.send(b"status")
            return json.loads(self.channel.recv(1 << 16))
        except (OSError, ValueError):  # it has ended
            return {"state": "INVALID", "clients": []}


def work(control: socket.socket) -> None:
    """Be the server, until the control daemon has ended."""
    clients: dict[socket.socket, int] = {}
    state = "ACTIVE"
    most = int(os.environ.get("MPS_CLIENTS", "60"))
    while True:
        for one in select.select([control, *clients], [], [])[0]:
            if one is not control:
                word = one.recv(64)
                if word == b"f":
                    state = "FAULT"
                    named = f"{{PID: {clients[one]}, Context: 1}}"
                    say("Server", f"Client {named} encountered a fatal GPU error.")
                    for other in clients:
                        if other is not one:
                            other.send(b"f")
                elif not word:
                    del clients[one]
                continue
            word, rights, _, _ = control.recvmsg(64, 64)
            if not word:
                os._exit(0)
            if word == b"status":
                control.send(json.dumps({"state": state, "clients": sorted(clients.values())}).encode())
                continue
            client = socket.socket(fileno=array.array("i", rights[0][2][:4])[0])
            hello = client.recv(128).decode().strip()
            pid, uid, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if state == "FAULT" or len(clients) >= most:
                client.send(b"n" if state == "FAULT" else b"m")
                continue
            say("Server", f"New client {pid} of user {uid}: {hello}")
            clients[client] = pid
            client.send(b"a")


def say(who: str, text: str) -> None:
    """As the driver's own do in the foreground: on standard output, and in no file."""
    print(f"[2026-11-22 23:18:04.374 {who:7} {os.getpid():5}] {text}", flush=True)


def shown(limit: str) -> str:
    """In the largest unit, as the driver's own does."""
    if limit.endswith("M") and int(limit[:-1]) % 1024 == 0:
        return f"{int(limit[:-1]) // 1024}G"
    return limit


if __name__ == "__main__":
    serve()
