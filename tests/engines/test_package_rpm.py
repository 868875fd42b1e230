"""The rpm: what is in it, and its scripts, run by rpm in a root that has nothing of it."""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess

import pytest
from elftools.elf.elffile import ELFFile
from support import CLEAN_ENV, need, run
from support.debian import Debian
from support.packages import MACHINE, NEWER, deb, rpm, version

pytestmark = pytest.mark.nightly

#: Where zsh looks differs.
MOVED = {"/usr/share/zsh/vendor-completions": "/usr/share/zsh/site-functions"}
SHARED = re.compile(
    r"/(etc|usr)?|/usr/(bin|lib|share)|/usr/lib/systemd(/system)?|/usr/lib/udev(/rules.d)?"
    r"|/usr/share/(man(/man.)?|doc)|/usr/share/(bash|fish|zsh).*"
)

ARCHITECTURES = {"x86_64": "x64", "aarch64": "AArch64"}
#: rpm has no other packages here, and Debian's says that it is not meant for this.
ANYWAY = ("--force-debian", "--nodeps")


def query(package: str, *options: str) -> list[str]:
    return run(
        need("rpm"), "--dbpath", "/dev/null", "--query", "--package", package, *options
    ).stdout.splitlines()


def moved(path: str) -> str:
    for old, new in MOVED.items():
        path = path.replace(old, new)
    return path


def test_what_is_in_it(packages: str) -> None:
    """The files of the deb, with the same modes; nothing of the directories that others own."""
    package = rpm(packages)
    lines = run("dpkg-deb", "-c", deb(packages)).stdout.splitlines()
    wanted = {
        moved(words[5].lstrip(".").rstrip("/")): words[0] for words in (line.split() for line in lines)
    }
    form = "[%{FILENAMES} %{FILEMODES:perms} %{FILEUSERNAME} %{FILEGROUPNAME}\n]"
    found = {}
    for name, mode, *owner in map(str.split, query(package, "--queryformat", form)):
        assert owner == ["root", "root"], name
        found[name] = mode
    for name, mode in wanted.items():
        # Modes of links mean nothing.
        assert SHARED.fullmatch(name) or name == "/etc/nvc" or found[name][0] == mode[0], name
        assert mode[0] == "l" or name not in found or found[name] == mode, name
    assert not set(found) - set(wanted)
    assert query(package, "--configfiles") == ["/etc/nvc/config.toml"]
    assert not {"/", "/usr", "/usr/bin", "/usr/lib", "/usr/lib/systemd/system", "/etc"} & set(found)
    requires = query(package, "--requires")
    assert "((python3 >= 3.10 with python3 < 3.14) or python3.13 or python3.12 or python3.11)" in requires
    assert "glibc >= 2.34" in requires, "as docs/install.md has it"


def test_it_unpacks(packages: str, scratch: str) -> None:
    package = rpm(packages)
    with subprocess.Popen([need("rpm2cpio"), package], stdout=subprocess.PIPE, env=CLEAN_ENV) as unpacking:
        run(need("cpio"), "--extract", "--make-directories", "--quiet", cwd=scratch, stdin=unpacking.stdout)
    assert os.readlink(f"{scratch}/usr/bin/nvc-hook") == "nvc-cli"
    with open(f"{scratch}/usr/share/nvc/hooks.d/nvc.json", encoding="utf-8") as hook:
        assert '"/usr/bin/nvc-hook"' in hook.read()


def test_for_the_other_machine(packages: str, scratch: str) -> None:
    """Packages for aarch64 have the same files, all native ones of that machine."""
    if MACHINE == "aarch64":
        return  # the packages of the other tests are these
    there = os.path.join(packages, "aarch64")
    assert query(rpm(there, "aarch64"), "--queryformat", "%{ARCH}") == ["aarch64"]
    assert run("dpkg-deb", "-f", deb(there, "aarch64"), "Architecture").stdout == "arm64\n"
    trees = {}
    for machine, directory in ((MACHINE, packages), ("aarch64", there)):
        tree = os.path.join(scratch, machine)
        run("dpkg-deb", "-x", deb(directory, machine), tree)
        trees[machine] = {
            re.sub(r"\d-[0-9a-f]{12}|x86_64|aarch64", "", os.path.relpath(os.path.join(path, name), tree))
            for path, _, names in os.walk(tree)
            for name in names
        }
        programs = libraries = 0
        for path, _, names in os.walk(tree):
            for name in names:
                with open(os.path.join(path, name), "rb") as file:
                    if file.read(4) != b"\x7fELF":
                        continue
                    assert ELFFile(file).get_machine_arch() == ARCHITECTURES[machine], name
                    programs += name == "nvc-cli"
                    libraries += fnmatch.fnmatch(name, "*.so")
        assert programs == 1 and libraries >= 9
        with open(f"{tree}/usr/lib/nvc/hot.bin", "rb") as archive:
            assert re.search(rf"site/_cffi_backend\.cpython-3\d+-{machine}-".encode(), archive.read())
    assert trees[MACHINE] == trees["aarch64"]


def test_its_scripts(packages: str, newer: str, ready: str, scratch: str) -> None:
    """Installed, upgraded and erased by rpm itself; dependencies are not looked at, since rpm knows none here."""
    with Debian(f"{scratch}/debian", ready) as debian:
        before = debian.named()

        def call(*words: str, check: bool = True) -> str:
            where = ("--root", debian.root, "--dbpath", "/var/lib/rpm")
            return run(need("rpm"), *where, *words, check=check).stdout

        call("--install", *ANYWAY, rpm(packages))
        assert f"cli-version: {version()}" in debian.sh("nvidia-container-cli --version").stdout
        debian.sh("nvc-cli sim create /srv/driver --gpus 2")
        debian.sh("echo '# mine' >> /etc/nvc/config.toml; systemctl disable nvc-cdi-refresh.path")

        call("--upgrade", *ANYWAY, rpm(newer))
        shown = debian.sh("/usr/share/nvc/first-container --root /srv/driver nvidia-smi -L").stdout
        assert shown.count("GPU-") == 2
        assert NEWER in debian.sh("nvidia-container-cli --version").stdout
        assert debian.read("/etc/nvc/config.toml").endswith("# mine\n")
        assert len(debian.sh("ls -d /usr/lib/nvc/vgpu/*-*").stdout.splitlines()) == 1
        state = "systemctl is-enabled nvc-cdi-refresh.service nvc-cdi-refresh.path || true"
        assert debian.sh(state).stdout.split() == ["enabled", "disabled"]
        changed = call("--verify", "--nodeps", "nvc", check=False).splitlines()
        assert [line.split()[-1] for line in changed] == ["/etc/nvc/config.toml"], changed

        call("--erase", "--nodeps", "nvc")
        left = [path for path in debian.named() if path not in before]
        assert left == ["/etc/nvc"] and debian.sh("ls /etc/nvc").stdout == "config.toml.rpmsave\n"
