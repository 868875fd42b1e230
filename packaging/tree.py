"""Lays out an installation of nvc: PREFIX/bin and PREFIX/lib/nvc.

    bin/nvc-cli nvc-hook ...            the launcher, under each of its names
    bin/nvidia-ctk ...                  links to it under NVIDIA's, those that no other program has
    bin/nvc-spin                        a program that loads a GPU
    lib/nvc/bin/                        nvc-hook and nvc-cdi-hook under NVIDIA's names, for nvc-runtime
    lib/nvc/launch.conf                 which interpreter, and where third-party code is
    lib/nvc/python/                     nvc, nvc_cli, nvc_hooks
    lib/nvc/hot.bin                     the modules of a container start in one file (archive/build.py)
    lib/nvc/settle archive/             makes launch.conf and hot.bin again, for another Python
    lib/nvc/in-use                      lists the containers whose engine needs nvc-runtime to stop them
    lib/nvc/manifest                    what else `make install` put below PREFIX (manifest.py)
    lib/nvc/site/                       the packages of setup.cfg's install_requires
    lib/nvc/simdriver/                  the simulated driver
    lib/nvc/vgpu/                       the shim of slices, by version (shim.py)
    lib/systemd/system/ share/          what is not code (share.py)

With --links it makes the development stage instead: code and packages stay where they are and are linked, so
that an edit is seen by the next start.
"""

from __future__ import annotations

import argparse
import configparser
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig

import manifest
import share
import shim
from names import NVIDIAS

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PACKAGES = {"nvc": "nvc", "nvc_cli": "cli", "nvc_hooks": "hooks"}
PROGRAMS = ("nvc-cli", "nvc-hook", "nvc-cdi-hook", "nvc-runtime", "nvcd", "nvc-kubelet-plugin", "nvc-nri")
#: By these names runtimes know hooks that give GPUs; links to the programs.
HOOKS = ("nvidia-container-runtime-hook", "nvidia-cdi-hook")
#: Where a program of such a name is NVIDIA's own.
PLACES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
#: Nothing at run time parses C: of cffi only the compiled back end is needed.
ONLY = {"cffi": "_cffi_backend"}
#: Compiled for one version of Python.
NATIVE = ("cffi", "python-prctl")
IGNORED = shutil.ignore_patterns("__pycache__", "*.c", "*.o", "*.pyc")


def requirements() -> list[str]:
    setup = configparser.ConfigParser()
    setup.read(os.path.join(REPO, "setup.cfg"))
    lines = setup["options"]["install_requires"].split()
    # The one marker in use: what newer versions of Python bring along themselves.
    lines = [line for line in lines if 'python_version<"3.11"' not in line or sys.version_info < (3, 11)]
    return [line.split(">")[0].split("=")[0].split(";")[0] for line in lines]


def copy_distribution(name: str, target: str) -> None:
    distribution = importlib.metadata.distribution(name)
    for file in distribution.files or ():
        parts = file.parts
        metadata = parts[0].endswith(".dist-info")
        wanted = metadata or parts[0].startswith(ONLY.get(name, ""))
        if parts[0] == ".." or file.suffix == ".pyc" or not wanted:
            continue
        copy = os.path.join(target, *parts)
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        shutil.copy(str(distribution.locate_file(file)), copy)


def replace_link(text: str, path: str) -> None:
    """Make `path` a symbolic link to `text`, whatever it was; a link that is right is left alone."""
    if os.path.islink(path) and os.readlink(path) == text:
        return
    remove(path)
    os.symlink(text, path)


def default_interpreter() -> str:
    """The distribution's interpreter if it is of this version: it starts fastest and belongs to root."""
    system = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    return system if os.access(system, os.X_OK) else sys.executable


def below(destdir: str, prefix: str) -> str:
    return os.path.join(destdir, prefix.lstrip("/")) if destdir else prefix


def remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def install_programs(build: str, bin_directory: str, symbolic: bool = False) -> None:
    """The launcher under each name, by links of either sort: it goes by the name it was executed under.

    nvc-spin lies beside it.
    """
    os.makedirs(bin_directory, exist_ok=True)
    remove(os.path.join(bin_directory, "nvc-spin"))
    shutil.copy(os.path.join(build, "nvc-spin"), os.path.join(bin_directory, "nvc-spin"))
    os.chmod(os.path.join(bin_directory, "nvc-spin"), 0o755)
    first = os.path.join(bin_directory, PROGRAMS[0])
    for name in PROGRAMS:
        path = os.path.join(bin_directory, name)
        remove(path)
        if path == first:
            shutil.copy(os.path.join(build, "launcher"), path)
            os.chmod(path, 0o755)
        elif symbolic:
            os.symlink(PROGRAMS[0], path)
        else:
            os.link(first, path)


def link_names(library: str) -> None:
    os.makedirs(os.path.join(library, "bin"), exist_ok=True)
    for name in HOOKS:
        replace_link(f"../../../bin/{NVIDIAS[name]}", os.path.join(library, "bin", name))


def free_names(bin_directory: str, places: tuple[str, ...]) -> list[str]:
    """NVIDIA's names that no program has in these directories: links that lead to nvc's are nvc's."""

    def is_taken(name: str, directory: str) -> bool:
        path = os.path.join(directory, name)
        return os.path.lexists(path) and os.path.basename(os.path.realpath(path)) not in PROGRAMS

    return [name for name in NVIDIAS if not any(is_taken(name, place) for place in (bin_directory, *places))]


def write_conf(library: str, interpreter: str, site: str) -> None:
    path = os.path.join(library, "launch.conf")
    with open(path, "w", encoding="ascii") as out:
        out.write(f"interpreter {interpreter}\npath {site}\n")
    os.chmod(path, 0o644)


def compile_bytecode(interpreter: str, library: str, destdir: str) -> None:
    """Compile for good: without source checks, so that neither an owner nor a time stamp can undo it."""
    directories = [os.path.join(library, name) for name in ("python", "site")]
    mode = ["--invalidation-mode", "unchecked-hash"]
    strip = ["-s", destdir] if destdir else []
    words = ["-I", "-m", "compileall", "-q", "-f", *mode, *strip, *directories]
    subprocess.run([interpreter, *words], check=True)


def write_archive(interpreter: str, library: str, destdir: str, machine: str = "") -> None:
    """hot.bin: what a container start loads, in one file. Only for the version of Python that makes it."""
    build = os.path.join(REPO, "packaging/archive/build.py")
    strip = ["--destdir", destdir] if destdir else []
    strip += ["--machine", machine] if machine else []
    subprocess.run([interpreter, "-I", build, library, *strip], check=True)


def close_to_others(directory: str) -> None:
    """Nobody but the owner may write below `directory`, and the owner is root when root installs."""
    for path, names, files in os.walk(directory):
        for name in [".", *names, *files]:
            entry = os.path.join(path, name)
            if os.geteuid() == 0:
                os.chown(entry, 0, 0, follow_symlinks=False)
            if not os.path.islink(entry):
                os.chmod(entry, os.stat(entry).st_mode & 0o7755 | 0o444)


def link_stage(prefix: str, build: str) -> None:
    library = os.path.join(prefix, "lib/nvc")
    os.makedirs(os.path.join(library, "python"), exist_ok=True)
    for name, source in PACKAGES.items():
        replace_link(os.path.join(REPO, source), os.path.join(library, "python", name))
    replace_link(os.path.abspath(os.path.join(build, "simdriver")), os.path.join(library, "simdriver"))


def copy_tree(prefix: str, build: str, native: bool = True, simulated: bool = True, version: str = "") -> None:
    """Copy the code, its packages, and what `build` has of C beside it; it gets the version, nvc's own by default.

    Without `native`, only packages that suit every version of Python; without `simulated`, no simulated driver.
    Earlier versions of the shim stay: containers may be about to be given one.
    """
    library = os.path.join(prefix, "lib/nvc")
    os.makedirs(library, exist_ok=True)
    for name in os.listdir(library):
        if name not in ("vgpu", manifest.NAME):
            remove(os.path.join(library, name))
    shim.install(os.path.join(build, "vgpu"), os.path.join(library, "vgpu"), version)
    for name, source in PACKAGES.items():
        shutil.copytree(os.path.join(REPO, source), os.path.join(library, "python", name), ignore=IGNORED)
    if version:
        path = os.path.join(library, "python/nvc/__init__.py")
        text = re.sub(rb'__version__ = "[^"]+"', f'__version__ = "{version}"'.encode(), share.read(path))
        share.write(path, text)
    for name in requirements():
        if native or name not in NATIVE:
            copy_distribution(name, os.path.join(library, "site"))
    archive = os.path.join(REPO, "packaging/archive")
    shutil.copytree(archive, os.path.join(library, "archive"), ignore=IGNORED)
    for name in ("settle", "in-use"):
        shutil.copy(os.path.join(REPO, "packaging", name), library)
    if simulated:
        source, ignored = os.path.join(build, "simdriver"), shutil.ignore_patterns(".obj")
        shutil.copytree(source, os.path.join(library, "simdriver"), symlinks=True, ignore=ignored)


def main() -> None:
    parser = argparse.ArgumentParser(description="Lays out an installation of nvc.")
    parser.add_argument("prefix", help="where it will be found, absolute")
    parser.add_argument("--destdir", default="", help="put before PREFIX while copying")
    parser.add_argument("--interpreter", default="", help="default: the distribution's, else this one")
    parser.add_argument("--build", default=share.BUILD, help="where make has put what it compiles")
    parser.add_argument("--links", action="store_true", help="link instead of copying")
    options = parser.parse_args()

    if not os.path.isabs(options.prefix):
        parser.error(f"PREFIX must be absolute: {options.prefix}")
    prefix = below(options.destdir, options.prefix)
    library = os.path.join(prefix, "lib/nvc")
    interpreter = os.path.realpath(options.interpreter or default_interpreter())
    os.umask(0o022)
    if options.links:
        link_stage(prefix, options.build)
        site = sysconfig.get_path("platlib")
    else:
        free = free_names(os.path.join(prefix, "bin"), () if options.destdir else PLACES)
        programs = (*PROGRAMS, "nvc-spin", *free)
        names = [*(f"bin/{name}" for name in programs), *share.contents(options.prefix)]
        manifest.begin(prefix, names)
        copy_tree(prefix, options.build)
        compile_bytecode(interpreter, library, options.destdir)
        write_archive(interpreter, library, options.destdir)
        site = os.path.join(options.prefix, "lib/nvc/site")
    write_conf(library, interpreter, site)
    link_names(library)
    install_programs(options.build, os.path.join(prefix, "bin"))
    if not options.links:
        for name in free:
            replace_link(NVIDIAS[name], os.path.join(prefix, "bin", name))
        share.install(prefix, options.prefix)
        manifest.finish(prefix, names)
        close_to_others(library)


if __name__ == "__main__":
    main()
