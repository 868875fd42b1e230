"""`make uninstall` takes away what `make install` brought, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
from runpy import run_path

import pytest
from support import CLEAN_ENV, PATIENCE, REPO, run, until
from support.builds import make


def tree(directory: str) -> dict[str, tuple[int, str]]:
    """Every path below a directory, with its mode and where it leads."""
    found = {}
    for path, names, files in os.walk(directory):
        for name in (*names, *files):
            full = os.path.join(path, name)
            link = os.readlink(full) if os.path.islink(full) else ""
            found[os.path.relpath(full, directory)] = (os.lstat(full).st_mode, link)
    return found


def write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


@pytest.mark.nightly
def test_what_was_there_before_stays(stage: str, scratch: str) -> None:
    """Files of others, empty directories and a link in place of a directory; what an earlier version had goes."""
    prefix = f"{scratch}/local prefix"
    write(f"{prefix}/bin/other", "somebody's")
    write(f"{prefix}/lib/other/x", "somebody's")
    os.makedirs(f"{prefix}/share/man")
    os.makedirs(f"{scratch}/elsewhere")
    os.symlink(f"{scratch}/elsewhere", f"{prefix}/share/fish")
    before = tree(scratch)

    make("install", f"PREFIX={prefix}")
    with open(f"{prefix}/lib/nvc/manifest", "a", encoding="utf-8") as listed:
        listed.write("share/old/\nshare/old/page\n")
    write(f"{prefix}/share/old/page", "of an earlier version")
    make("install", f"PREFIX={prefix}")
    assert not os.path.exists(f"{prefix}/share/old/page")
    write(f"{prefix}/share/nvc/mine", "added by somebody")
    run(f"{prefix}/lib/nvc/settle")
    run(f"{prefix}/bin/nvc-spin", "--help")

    make("uninstall", f"PREFIX={prefix}")
    mine = {"local prefix/share/nvc", "local prefix/share/nvc/mine"}
    assert tree(scratch).keys() - mine == before.keys()
    assert {name: facts for name, facts in tree(scratch).items() if name not in mine} == before


def test_processes_of_others_do_not_count_as_engines(scratch: str) -> None:
    """They may have an engine's name, show escape sequences as a container's, and have files without an end."""
    os.chmod(scratch, 0o755)
    for name in ("bin", "lib/nvc", "ns/mine", "ns/other"):
        os.makedirs(f"{scratch}/{name}")
    shutil.copy(f"{REPO}/packaging/in-use", f"{scratch}/lib/nvc")
    write(f"{scratch}/bin/nvc-cli", "")
    os.mkfifo(f"{scratch}/ns/other/runtime", 0o666)
    words = {"conmon": ("-r", f"{scratch}/bin/nvc-cli", "-n", "a\x1b[2Jb"), "containerd-shim": ()}
    for user, wanted in ((65534, ""), (os.getuid(), "conmon: a[2Jb\n")):
        running = []
        for name in words if user else ("conmon",):
            shutil.copy("/bin/sh", f"{scratch}/{name}")
            script = ("-c", "read -r line; exit", *words[name])
            running.append(
                subprocess.Popen([f"{scratch}/{name}", *script], stdin=subprocess.PIPE, user=user,
                                 cwd=f"{scratch}/ns/mine", env=CLEAN_ENV)
            )  # fmt: skip
        try:
            for one in running:
                until(lambda pid=one.pid: _name(pid) in words)  # type: ignore[misc]
            assert run("sh", f"{scratch}/lib/nvc/in-use", timeout=PATIENCE).stdout == wanted
        finally:
            for one in running:
                one.communicate()


def _name(pid: int) -> str:
    with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
        return file.read().strip()


@pytest.mark.nightly
def test_nvidia_s_names(stage: str, scratch: str) -> None:
    """Links, but not where NVIDIA's program is; and one that comes later stays as well."""
    names = run_path(f"{REPO}/packaging/names.py")["NVIDIAS"]
    write(f"{scratch}/bin/nvidia-ctk", "NVIDIA's")
    make("install", f"PREFIX={scratch}")
    taken = {"nvidia-ctk"} | {name for name in names if shutil.which(name, path=CLEAN_ENV["PATH"])}
    for name, program in names.items():
        path = f"{scratch}/bin/{name}"
        assert os.path.islink(path) is (name not in taken) and (name in taken or os.readlink(path) == program)
    os.unlink(f"{scratch}/bin/nvidia-cdi-hook")
    write(f"{scratch}/bin/nvidia-cdi-hook", "NVIDIA's")
    make("install", f"PREFIX={scratch}")
    make("uninstall", f"PREFIX={scratch}")
    assert sorted(os.listdir(f"{scratch}/bin")) == ["nvidia-cdi-hook", "nvidia-ctk"]


@pytest.mark.nightly
def test_nvcd_ends(stage: str, scratch: str) -> None:
    """This installation's, with what is mounted for its part in the kernel; not another's."""
    make("install", f"PREFIX={scratch}/mine")
    make("install", f"PREFIX={scratch}/other")
    run(f"{scratch}/mine/bin/nvc-cli", "sim", "create", f"{scratch}/driver")
    os.makedirs("/run/nvc/bpf", mode=0o700)
    run("mount", "-t", "bpf", "bpf", "/run/nvc/bpf")
    nvcd = subprocess.Popen([f"{scratch}/mine/bin/nvcd", f"--root={scratch}/driver"], env=CLEAN_ENV)
    try:
        until(lambda: run(f"{scratch}/mine/bin/nvcd", "--state", check=False).returncode == 0)
        make("uninstall", f"PREFIX={scratch}/other")
        assert nvcd.poll() is None
        make("uninstall", f"PREFIX={scratch}/mine")
        assert nvcd.wait(timeout=PATIENCE) == 0
    finally:
        nvcd.kill()
        nvcd.wait()
    assert not os.path.ismount("/run/nvc/bpf")


@pytest.mark.nightly
def test_below_destdir(stage: str, scratch: str) -> None:
    words = ("PREFIX=/usr", f"DESTDIR={scratch}/package")
    make("install", *words)
    make("uninstall", *words)
    assert os.listdir(f"{scratch}/package") == []


def test_where_nothing_was_installed(scratch: str) -> None:
    write(f"{scratch}/lib/nvc/launch.conf", "somebody's")
    done = run("make", "-s", "-C", REPO, "uninstall", f"PREFIX={scratch}", check=False)
    assert done.returncode and "Traceback" not in done.stderr
    assert f"nothing that `make install` put into {scratch}: no {scratch}/lib/nvc/manifest" in done.stderr
    assert os.path.exists(f"{scratch}/lib/nvc/launch.conf")
