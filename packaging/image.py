"""Makes the image for Kubernetes nodes: an OCI archive with nvc, the Python that it runs on, and nothing else.

    /opt/nvc/VERSION/bin, lib/nvc                   as on any host; VERSION ends with a digest of the content
    /opt/nvc/VERSION/lib/nvc/interpreter            Python, its libraries and their loader
    /opt/nvc/VERSION/lib/nvc/node                   copies all this to a node and removes it (kubernetes/node.py)
    /opt/nvc/VERSION/lib/nvc/toolkit                does so for NVIDIA's GPU operator (kubernetes/toolkit.py)
    /usr/bin                                        busybox, by which the operator starts that, as nvidia-toolkit
    /run, ...                                       empty: places to mount the node's own

Nodes differ in C library and Python, and many have no Python: what runs there, hooks of containers included, brings
its own. Paths are the same in the image and on the node, so that the container runtime finds what the plugin names.
Built of this machine's Debian packages, without root and without a registry.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig

import notice
import oci
import package
import share
import shim
import tree
from names import NVIDIAS

#: Where nodes have it. Programs name their loader by its absolute path: it cannot be moved.
PLACE = "/opt/nvc"
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
#: Programs for nodes, in kubernetes/.
SCRIPTS = ("node", "toolkit")
#: Packages of Debian that are Python.
DEBIAN = (f"{PYTHON}-minimal", f"lib{PYTHON}-minimal", f"lib{PYTHON}-stdlib")
#: Of the standard library, what nothing here needs.
LEFT_OUT = ("test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "distutils", "pydoc_data", "venv")
#: And compiled modules, for the libraries that they would bring along.
MODULES = ("nis", "readline", "_crypt", "_curses", "_curses_panel", "_dbm", "_gdbm", "_tkinter")
#: What libraries of drivers are linked with, whatever Python needs.
GLIBC = ("libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1")
#: Python's packages beside those of every installation: what is compiled for this Python, and the plugin's.
PACKAGES = ("cffi", "grpcio", "protobuf", "typing-extensions")
#: What the operator's script calls: it is a shell's.
BUSYBOX = ("/usr/bin/busybox", "/bin/busybox")
APPLETS = ("sh", "cat", "sleep")
#: Slashes in the paths by which programs name their loader: room for a longer path (kubernetes/toolkit.py).
ROOM = 128
#: Places to mount the node's directories on.
PLACES = ("usr", "etc/nvc", "proc", "sys", "dev", "tmp", "run", "var/lib", "host", "driver")
#: As on every host that nvc supports: libraries below /usr.
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64", "var/run": "../run"}


def listed(name: str) -> list[str]:
    return subprocess.run(
        ["dpkg-query", "-L", name], check=True, capture_output=True, text=True
    ).stdout.splitlines()


def libraries(path: str) -> dict[str, str]:
    """What the loader finds for a program or library: name and path, its own loader included."""
    done = subprocess.run(["ldd", path], check=False, capture_output=True, text=True)
    found = dict(re.findall(r"^\t(\S+) => (/\S+) \(", done.stdout, re.MULTILINE))
    for loader in re.findall(r"^\t(/\S+) \(", done.stdout, re.MULTILINE):
        found[os.path.basename(loader)] = loader
    missing = re.findall(r"^\t(\S+) => not found", done.stdout, re.MULTILINE)
    if missing:
        raise SystemExit(f"image: {path} needs {', '.join(missing)}, which this machine lacks")
    return found


def is_elf(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def interpreter(target: str, library: str, shown: str) -> None:
    """Python, and what it and the packages in `library` are linked against, below `target`, found at `shown`."""
    base = f"/usr/lib/{PYTHON}/"
    for name in DEBIAN:
        for path in listed(name):
            inner = path.removeprefix(base)
            top, leaf = inner.split("/")[0], os.path.basename(path).split(".")[0]
            if inner == path or not os.path.isfile(path) or top in (*LEFT_OUT, "__pycache__"):
                continue
            if top == "lib-dynload" and leaf in MODULES:
                continue
            copy = os.path.join(target, "lib", PYTHON, inner)
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            shutil.copy(path, copy)
    program = os.path.join(target, "bin", PYTHON)
    os.makedirs(os.path.dirname(program))
    shutil.copy(f"/usr/bin/{PYTHON}", program)
    needed = libraries(program)
    places = os.path.dirname(os.path.realpath(needed["libc.so.6"]))
    needed.update({name: os.path.join(places, name) for name in GLIBC})
    for top in (target, library):
        for path, _, files in os.walk(top):
            for each in (os.path.join(path, name) for name in files if name.endswith(".so") or name == PYTHON):
                if is_elf(each) and "/vgpu/" not in each:
                    needed.update(libraries(each))
    for name, path in needed.items():
        shutil.copy(path, os.path.join(target, "lib", name))
    (loader,) = [name for name in needed if name.startswith("ld-linux")]
    lib = os.path.join(shown, "lib")
    words = ["--set-interpreter", os.path.join(lib, loader), "--force-rpath", "--set-rpath", lib]
    subprocess.run(["patchelf", *words, program], check=True)


def digest(root: str) -> str:
    """Eight characters that differ when any file, link or mode below `root` does."""
    found = hashlib.sha256()
    for name in oci.entries(root):
        path = os.path.join(root, name)
        info = os.lstat(path)
        found.update(f"{name}\0{info.st_mode}\0".encode())
        if os.path.islink(path):
            found.update(os.readlink(path).encode())
        elif os.path.isfile(path):
            with open(path, "rb") as file:
                found.update(file.read())
    return found.hexdigest()[:8]


def lay_out(root: str, version: str) -> str:
    """Fill `root`; the directory name below PLACE is returned."""
    tree.remove(root)
    for name in PLACES:
        os.makedirs(os.path.join(root, name))
    for name, target in LINKS.items():
        os.symlink(target, os.path.join(root, name))
    made = os.path.join(root, "made")
    library = os.path.join(made, "lib/nvc")
    tree.copy_tree(made, share.BUILD, native=False, simulated=False, version=version)
    for name in PACKAGES:
        tree.copy_distribution(name, os.path.join(library, "site"))
    tree.install_programs(share.BUILD, os.path.join(made, "bin"), symbolic=True)
    for link, program in NVIDIAS.items():
        os.symlink(program, os.path.join(made, "bin", link))
    scripts = {}
    for script in SCRIPTS:
        scripts[script] = share.read(os.path.join(tree.REPO, f"packaging/kubernetes/{script}.py"))
        share.write(os.path.join(library, script), scripts[script])
    name = f"{version}-{digest(made)}"
    place = os.path.join(root, PLACE.lstrip("/"))
    os.makedirs(place)
    os.rename(made, os.path.join(place, name))
    os.symlink(name, os.path.join(place, "current"))
    library = os.path.join(place, name, "lib/nvc")
    shown = os.path.join(PLACE, name, "lib/nvc")
    roomy = f"{PLACE}/{name}{'/' * ROOM}lib/nvc/interpreter"
    interpreter(os.path.join(library, "interpreter"), library, roomy)
    program = f"{shown}/interpreter/bin/{PYTHON}"
    tree.write_conf(library, program, f"{shown}/site")
    for script, text in scripts.items():
        share.write(os.path.join(library, script), f"#!{program} -I\n".encode() + text, 0o755)
    shell(root, f"{shown}/toolkit")
    compiler = tree.default_interpreter()
    tree.compile_bytecode(compiler, library, root)
    tree.write_archive(compiler, library, root)
    stdlib = os.path.join(library, "interpreter/lib", PYTHON)
    mode = ["--invalidation-mode", "unchecked-hash"]
    subprocess.run([compiler, "-I", "-m", "compileall", "-q", "-f", *mode, "-s", root, stdlib], check=True)
    prefix = os.path.join(place, name)
    notice.write(os.path.join(prefix, "share/doc/nvc"), prefix, (*DEBIAN, notice.STATIC, "busybox-static"))
    tree.close_to_others(root)
    return name


def shell(root: str, toolkit: str) -> None:
    """A shell in /usr/bin, and the program that the operator's script executes."""
    programs = os.path.join(root, "usr/bin")
    os.makedirs(programs)
    shutil.copy(next(path for path in BUSYBOX if os.path.exists(path)), os.path.join(programs, "busybox"))
    for name in APPLETS:
        os.symlink("busybox", os.path.join(programs, name))
    os.symlink(toolkit, os.path.join(programs, "nvidia-toolkit"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the image for Kubernetes nodes.")
    parser.add_argument("archive")
    parser.add_argument("--version", default="", help="default: nvc's own")
    parser.add_argument("--name", default="localhost/nvc", help="of the image, without its tag")
    options = parser.parse_args()
    os.umask(0o022)
    if sysconfig.get_config_var("MULTIARCH") is None:
        parser.error("the image is made of a Debian or Ubuntu machine's Python: make PYTHON=/usr/bin/python3")
    os.environ["SOURCE_DATE_EPOCH"] = str(package.source_date())
    version = options.version or shim.own_version()
    root = options.archive + ".root"
    os.makedirs(os.path.dirname(os.path.abspath(root)), exist_ok=True)
    name = lay_out(root, version)
    reference = f"{options.name}:{version}"
    program = f"{PLACE}/{name}/lib/nvc/node"
    env = [f"PATH={':'.join(tree.PLACES)}"]
    about = {"title": "nvc", "version": version, "licenses": "Apache-2.0"}
    labels = {f"org.opencontainers.image.{key}": value for key, value in about.items()}
    oci.write_archive(options.archive, root, reference, env, [program], labels)
    tree.remove(root)
    print(f"{os.path.relpath(options.archive)}: {reference}, {os.stat(options.archive).st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
