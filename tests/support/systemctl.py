"""`systemctl start|stop|restart|reload NAME...` for the daemons of a test's host, without systemd.

A start returns when the daemon says that it is ready (sd_notify(3)), a stop when it has ended. Hosts share the
machine's cgroups, and containerd's are named after containers: it runs on one host at a time, and a start waits.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import socket
import subprocess
import sys

DAEMONS = {
    "docker": ["dockerd", "--host=unix:///run/docker.sock"],
    "containerd": ["containerd"],
    "crio": ["crio"],
}
#: As the units of the daemons have it: dockerd looks there for the hook of `--gpus` when it starts.
#: Names of its containers, such as the c1 of documentation, are names of cgroups.
ALONE = ("containerd",)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SECONDS = 60
#: For another host's daemon.
WAIT_SECONDS = 170


def pid_file(name: str) -> str:
    return f"/run/{name}.main-pid"


def start(name: str) -> None:
    """Start one daemon and wait until it is ready, or has ended."""
    address = f"/run/{name}.notify"
    lock = await_others(name) if name in ALONE else -1
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready, open(f"/run/{name}.log", "ab") as log:
        if os.path.exists(address):
            os.unlink(address)
        ready.bind(address)
        env = {"PATH": PATH, "NOTIFY_SOCKET": address}
        program, *options = DAEMONS[name]
        path = shutil.which(program, path=PATH)
        if path is None:
            raise SystemExit(f"{program} is not on this host")
        process = subprocess.Popen(
            [path, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=env,
            start_new_session=True,
        )
        with open(pid_file(name), "w", encoding="ascii") as out:
            out.write(str(process.pid))
        ended = os.pidfd_open(process.pid)
        while True:
            events, _, _ = select.select([ready.fileno(), ended], [], [], SECONDS)
            if ready.fileno() in events and b"READY=1" in ready.recv(4096).split(b"\n"):
                if lock >= 0:
                    hold(lock, ended)
                return
            if ended in events or not events:
                with open(f"/run/{name}.log", encoding="utf-8", errors="replace") as text:
                    raise SystemExit(f"{name} does not start:\n{''.join(text.readlines()[-20:])}")


def await_others(name: str) -> int:
    """Take the machine's lock of this daemon: its descriptor."""
    # /var/tmp is the one place that all hosts have in common.
    lock = os.open(f"/var/tmp/nvc-tests-{name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    signal.alarm(WAIT_SECONDS)
    fcntl.flock(lock, fcntl.LOCK_EX)
    signal.alarm(0)
    return lock


def hold(lock: int, ended: int) -> None:
    """Keep the lock until the daemon ends, in a process of its own: what the daemon starts may live longer."""
    if os.fork() == 0:
        os.setsid()
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        select.select([ended], [], [])
        os._exit(0)
    os.close(lock)


def main_pid(name: str) -> int:
    """Its process id, 0 if it does not run."""
    try:
        with open(pid_file(name), encoding="ascii") as file:
            return int(file.read())
    except FileNotFoundError:
        return 0


def stop(name: str) -> None:
    """End one daemon and wait for it."""
    pid = main_pid(name)
    if not pid:
        return
    os.unlink(pid_file(name))
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        signal.pidfd_send_signal(process, number)
        if select.select([process], [], [], SECONDS)[0]:
            return
    raise SystemExit(f"{name} does not end")


def main() -> None:
    verb, *names = sys.argv[1:]
    for name in names:
        if verb not in ("start", "stop", "restart", "reload") or name not in DAEMONS:
            raise SystemExit(f"systemctl {verb} {name}: not on this host")
        if verb == "reload":
            os.kill(main_pid(name), signal.SIGHUP)
        if verb in ("stop", "restart"):
            stop(name)
        if verb in ("start", "restart"):
            start(name)


if __name__ == "__main__":
    main()
