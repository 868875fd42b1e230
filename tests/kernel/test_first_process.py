"""The first process of a container, as a hook that runs in the container's namespaces finds it."""

from __future__ import annotations

import os
import sys

import pytest
from support import CLEAN_ENV, REPO, run

#: Starts a container's first process, which calls a hook when it is told to. Meanwhile the main thread is in the
#: container's mount namespace, or nowhere else than all others.
RUNTIME = """
import ctypes, os, subprocess, sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
words = ["unshare", "--mount", sys.executable, "-c", sys.argv[1], sys.argv[2]]
first = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
assert first.stdout.readline() == "ready\\n"
if sys.argv[3] == "joins":
    namespace = os.open(f"/proc/{first.pid}/ns/mnt", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(0x200) == 0 and libc.setns(namespace, 0x20000) == 0, ctypes.get_errno()
    assert os.readlink("/proc/self/ns/mnt") == os.readlink(f"/proc/{first.pid}/ns/mnt")
print(first.pid, *first.communicate("go\\n")[0].split())
"""
FIRST = """
import subprocess, sys
print("ready", flush=True)
sys.stdin.readline()
subprocess.run([sys.executable, "-c", sys.argv[1]], check=True)
"""
HOOK = """
import os, types
from nvc.slices.store.process_info import first_process
proc = os.open("/proc/self", os.O_RDONLY)
print(first_process(types.SimpleNamespace(proc=proc, mount_namespace=-1, host=False))[0])
"""


@pytest.mark.parametrize("thread", ["joins", "stays"])
def test_it_is_not_the_runtime(thread: str) -> None:
    """Though the main thread of runc may be in the container's mount namespace (since 1.2)."""
    words = (sys.executable, "-c", RUNTIME, FIRST, HOOK, thread)
    first, found = run(*words, env={**CLEAN_ENV, "PYTHONPATH": REPO}, cwd=os.sep).stdout.split()
    assert found == first
