"""Makes the deb and the rpm: lays out /usr for a machine, then has nfpm pack what nfpm.yaml describes.

    package.py DIRECTORY [--version VERSION] [--arch all]

Packages for this machine appear in DIRECTORY in place of earlier ones, so that `DIRECTORY/nvc_*.deb` is one file.
With `--arch all` those for aarch64 appear in DIRECTORY/aarch64; that needs a cross compiler. They suit every Python
that nvc runs on, and hold bytecode for the one that made them; scripts/ and `settle` do the rest on the host.
"""

from __future__ import annotations

import argparse
import glob
import os
import platform
import re
import shutil
import subprocess
import sys

import cross
import notice
import share
import shim
import tree
import wheels
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from names import NVIDIAS

DESCRIPTION = os.path.join(tree.REPO, "packaging/nfpm.yaml")
SCRIPTS = ("preinstall", "postinstall", "preremove", "postremove")
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
WORDS = {"deb": "nvc_{version}-1_{debian}.deb", "rpm": "nvc-{version}-1.{machine}.rpm"}


def source_date() -> int:
    """The time of every file, in seconds: of the last commit, so that packages can be made again byte by byte."""
    if "SOURCE_DATE_EPOCH" in os.environ:
        return int(os.environ["SOURCE_DATE_EPOCH"])
    git = ["git", "-C", tree.REPO, "log", "-1", "--format=%ct"]
    done = subprocess.run(git, check=False, capture_output=True, text=True)
    return (
        int(done.stdout)
        if done.returncode == 0
        else int(os.stat(os.path.join(tree.REPO, "setup.cfg")).st_mtime)
    )


def lay_out(root: str, build: str, machine: str, version: str, cache: str) -> None:
    tree.remove(root)
    prefix = os.path.join(root, "usr")
    library = os.path.join(prefix, "lib/nvc")
    tree.copy_tree(prefix, build, native=False, version=version)
    if build != share.BUILD:  # of another architecture than the one that came with the code
        shutil.copy(os.path.join(build, "_syscalls.abi3.so"), os.path.join(library, "python/nvc"))
    wheels.every_python(os.path.join(library, "site"), cache, machine)
    interpreter = tree.default_interpreter()
    tree.compile_bytecode(interpreter, library, root)
    tree.write_archive(interpreter, library, root, machine)
    tree.install_programs(build, os.path.join(prefix, "bin"), symbolic=True)
    tree.link_names(library)
    share.install(prefix, "/usr")
    os.makedirs(os.path.join(root, "etc/nvc"))
    os.makedirs(os.path.join(prefix, "share/man"), exist_ok=True)
    documents = os.path.join(prefix, "share/doc/nvc")
    share.documents(documents)
    notice.write(documents, prefix)
    shutil.copy(os.path.join(tree.REPO, "packaging/config.toml"), os.path.join(root, "etc/nvc"))
    tree.close_to_others(root)


def set_times(root: str, when: int) -> None:
    for path, names, files in os.walk(root):
        for name in [".", *names, *files]:
            os.utime(os.path.join(path, name), (when, when), follow_symlinks=False)


def glibc(root: str) -> str:
    """The oldest glibc that has every symbol which the libraries want, such as "2.34"."""
    newest = (2, 17)
    for path, _, files in os.walk(root):
        for name in files:
            with open(os.path.join(path, name), "rb") as file:
                if file.read(4) != b"\x7fELF":
                    continue
                section = ELFFile(file).get_section_by_name(".gnu.version_r")
                if not isinstance(section, GNUVerNeedSection):
                    continue
                wanted = [version.name for _, versions in section.iter_versions() for version in versions]
            for found in (re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", name) for name in wanted):
                if found:
                    newest = max(newest, (int(found[1]), int(found[2])))
    return f"{newest[0]}.{newest[1]}"


def scripts(target: str) -> None:
    """The maintainer scripts, with the names of the units that are enabled, and NVIDIA's names of programs."""
    units = [path for path in share.units() if b"\n[Install]\n" in share.read(path)]
    names = " ".join(os.path.basename(path) for path in units)
    nvidias = " ".join(f"{theirs}:{ours}" for theirs, ours in NVIDIAS.items())
    for name in SCRIPTS:
        text = share.read(os.path.join(tree.REPO, "packaging/scripts", name))
        text = text.replace(b"@UNITS@", names.encode()).replace(b"@NAMES@", nvidias.encode())
        share.write(os.path.join(target, name), text, 0o755)


def pack(directory: str, target_directory: str, root: str, machine: str, version: str) -> None:
    """Have nfpm make both packages of what is laid out in `root`, into `target_directory`."""
    os.makedirs(target_directory, exist_ok=True)
    set_times(root, source_date())
    debian = DEBIAN[machine]
    variables = {"ARCH": debian, "VERSION": version, "ROOT": root, "GLIBC": glibc(root)}
    environment = {f"NVC_{name}": value for name, value in variables.items()}
    nfpm = os.path.join(os.path.dirname(sys.executable), "nfpm")
    for kind, words in WORDS.items():
        target = os.path.join(target_directory, words.format(version=version, debian=debian, machine=machine))
        command = [nfpm, "package", "-f", DESCRIPTION, "-p", kind, "-t", target]
        subprocess.run(
            command,
            check=True,
            cwd=directory,  # of scripts/
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
        )
        print(f"{os.path.relpath(target)}: {os.stat(target).st_size / 2**20:.1f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the deb and the rpm.")
    parser.add_argument("directory")
    parser.add_argument("--version", default="", help="default: nvc's own")
    parser.add_argument("--arch", default="native", choices=("native", "all"))
    options = parser.parse_args()
    os.umask(0o022)
    directory = os.path.abspath(options.directory)
    cache = os.path.join(share.BUILD, "wheels")
    version = options.version or shim.own_version()
    if not re.fullmatch(r"\d[0-9A-Za-z.+~]*", version):
        parser.error(f"no version that dpkg and rpm both know: {version}")
    scripts(os.path.join(directory, "scripts"))
    os.environ["SOURCE_DATE_EPOCH"] = str(source_date())  # also what compilers and nfpm go by

    made = {platform.machine(): (directory, share.BUILD)}
    if options.arch == "all" and platform.machine() != cross.MACHINE:
        other = os.path.join(share.BUILD, cross.MACHINE)
        if not cross.build(other):
            parser.error(f"no cross compiler for {cross.MACHINE}: see packaging/apt-packages.txt")
        made[cross.MACHINE] = (os.path.join(directory, cross.MACHINE), other)
    for place in ("", cross.MACHINE):
        for old in glob.glob(os.path.join(glob.escape(directory), place, "nvc[_-]*.[dr][ep][bm]")):
            os.unlink(old)
    for machine, (target, build) in made.items():
        root = os.path.join(directory, "root", machine)
        lay_out(root, build, machine, version, cache)
        pack(directory, target, root, machine, version)


if __name__ == "__main__":
    main()
