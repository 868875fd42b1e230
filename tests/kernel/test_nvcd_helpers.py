"""What the driver's own code finds in the process of nvcd's that runs it."""

from __future__ import annotations

import glob
import os
import signal
from collections.abc import Callable

import pytest
from support import need, run
from support.nvcd import Place, eventually

from nvc.daemon.audit.nvml_client import NvmlClient
from nvc.daemon.io.helper import fork
from nvc.daemon.io.loop import SECOND, Loop
from nvc.slices.make.calibrate import Libraries

#: Stands before the simulated libnvidia-ml, and writes down what it sees.
SOURCE = """
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
extern char **environ;
static __attribute__((constructor)) void look(void)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%%d", (int)getpid());
    FILE *out = fopen(path, "w");
    struct sigaction action;
    DIR *directory = opendir("/proc/self/fd");
    if (!out || !directory)
        return;
    for (char **word = environ; *word; word++)
        fprintf(out, "environment %%s\\n", *word);
    sigaction(SIGTERM, NULL, &action);
    fprintf(out, "term %%d\\n", action.sa_handler == SIG_DFL);
    for (struct dirent *entry; (entry = readdir(directory));)
        fprintf(out, "open %%s\\n", entry->d_name);
    fprintf(out, "end\\n");
    fclose(out);
}
"""


def test_nothing_of_the_daemon(place: Place, sim_root: Callable[..., str], scratch: str) -> None:
    """No word of its environment, no descriptor of its sockets, no handler."""
    driver = sim_root(gpus=1)
    (library,) = glob.glob(f"{driver}/usr/lib/{os.uname().machine}-linux-gnu/libnvidia-ml.so.*.*")
    with open(library, "rb") as file:
        real = file.read().replace(b"libnvidia-ml.so.1", b"libnvidia-mm.so.1")
    os.unlink(library)
    behind = os.path.join(os.path.dirname(library), "libnvidia-mm.so.1")
    with open(behind, "wb") as out:
        out.write(real)
    seen = f"{scratch}/seen"
    os.mkdir(seen)
    os.chmod(seen, 0o777)
    with open(f"{scratch}/nvml.c", "w", encoding="ascii") as source:
        source.write(SOURCE % seen)
    flags = ("-Wl,-soname,libnvidia-ml.so.1", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed")
    run(need("gcc"), "-shared", "-fPIC", *flags, "-o", library, f"{scratch}/nvml.c", behind)
    daemon = place.start(f"--root={driver}", WATCHDOG_USEC="30000000", LANG="C.UTF-8")
    eventually(place, lambda state: state["nvml"]["devices"] == 1)
    with open(f"/proc/{daemon.pid}/task/{daemon.pid}/children", encoding="ascii") as file:
        (helper,) = set(file.read().split()) & set(os.listdir(seen))
    with open(f"{seen}/{helper}", encoding="utf-8") as file:
        lines = file.read().splitlines()
    assert lines[-1] == "end" and "term 1" in lines
    assert not [line for line in lines if line.startswith("environment ")]
    numbers = [line.split()[1] for line in lines if line.startswith("open ")]
    # The standard streams, its socket, what the library writes to and reads here; and `.` and `..`.
    assert len(numbers) == 3 + 1 + 2 + 2, numbers


def test_none_can_be_taken(place: Place) -> None:
    """By the root of a container with the host's pid namespace, which has the one right that the watcher keeps."""
    daemon = place.start()
    watcher = run("pgrep", "--parent", str(daemon.pid), "--exact", "nvcd-watch").stdout.strip()
    only = "-all,+net_admin"
    words = ("setpriv", f"--bounding-set={only}", f"--inh-caps={only}", "readlink")
    assert run(*words, "/proc/self/root").stdout == "/\n"
    assert run(*words, f"/proc/{watcher}/root", check=False).returncode == 1


def test_an_answer_that_is_awaited_no_more() -> None:
    """A driver that was replaced is asked at once, not when the last answer is overdue."""
    said: list[str] = []
    nvml = NvmlClient(Loop(), lambda devices, now: None, lambda now: None, said.append, False)
    nvml.libraries = Libraries("/", "/nowhere", "/nowhere")
    assert nvml.ask(SECOND) and not nvml.ask(2 * SECOND)
    nvml.close()
    assert nvml.ask(3 * SECOND) and not said
    first = nvml.pid
    assert not nvml.ask(9 * SECOND) and said == ["NVML: no answer within 5 s; asked again in 30 s"]
    assert not nvml.ask(38 * SECOND) and nvml.ask(39 * SECOND) and nvml.pid != first
    nvml.close()
    for pid in nvml._unreaped:  # nvcd would look again
        os.waitpid(pid, 0)


def test_a_signal_that_comes_at_once() -> None:
    """It ends the child, and is not written into the pipe by which the daemon hears of its own."""
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    handler = signal.signal(signal.SIGTERM, lambda *_: None)
    wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        for _ in range(50):
            pid = fork()
            if pid == 0:
                try:
                    signal.alarm(10)
                    signal.pause()
                finally:
                    os._exit(1)
            os.kill(pid, signal.SIGTERM)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
        with pytest.raises(BlockingIOError):
            os.read(read, 1)
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGTERM, handler)
        os.close(read)
        os.close(write)
