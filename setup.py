"""Builds nvc for pip; metadata is in setup.cfg.

A wheel has the tree that `make install` lays out, as data: bin/ and lib/nvc/, so that the same launcher starts the
programs from the same places. `nvc.pth` has Python find the packages there.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
import sysconfig

from setuptools import setup
from setuptools.command.build import build

REPO = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(REPO, "packaging"))

import tree  # noqa: E402  (its directory has just been added)

#: In place of build/, for `make`; relative, so that a path with spaces does not matter.
NATIVE = "build/pip"


def make_native() -> None:
    """The launcher, nvc-spin, the simulated driver and the shim. Nothing is installed with apt on the way."""
    os.makedirs(os.path.join(REPO, NATIVE), exist_ok=True)
    with open(os.path.join(REPO, NATIVE, ".packages-build"), "w", encoding="ascii"):
        pass
    targets = [f"{NATIVE}/launcher", f"{NATIVE}/nvc-spin", "simdriver", "shim"]
    subprocess.run(
        ["make", "-s", "--no-print-directory", "-C", REPO, f"BUILD={NATIVE}", *targets], check=True
    )


def make_tracers() -> None:
    """The program that sees what processes make of the driver, for both machines."""
    for machine in ("x86_64", "aarch64"):
        out = os.path.join(REPO, f"nvc/tracer-{machine}.bin")
        command = [sys.executable, os.path.join(REPO, "native/tracer/build.py"), machine, out]
        subprocess.run(command, check=True)


def make_stubs() -> None:
    """Messages of kubelet's interfaces and of NRI, for nvc-kubelet-plugin and nvc-nri."""
    protocol = glob.glob("nvc/**/protocol/*.proto", root_dir=REPO, recursive=True)
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", "--python_out=.", "--pyi_out=."]
    subprocess.run([*command, *protocol], check=True, cwd=REPO)


def launch_conf() -> str:
    """The interpreter of the environment that pip installs into, and its directories of packages beside lib/nvc."""
    paths = sysconfig.get_paths()
    sites = dict.fromkeys(paths[kind] for kind in ("platlib", "purelib"))
    library = os.path.join(paths["data"], "lib/nvc")
    lines = "".join(f"path {os.path.relpath(site, library)}\n" for site in sites)
    return f"interpreter {os.path.realpath(sys.executable)}\n{lines}"


class Build(build):
    """Lays out the tree, and hands its files to the command that packs data files."""

    def run(self) -> None:
        make_stubs()
        make_tracers()
        super().run()
        root = os.path.join(os.path.abspath(self.build_base), "pip/tree")
        library = os.path.join(root, "lib/nvc")
        shutil.rmtree(root, ignore_errors=True)
        make_native()
        for name in tree.PACKAGES:
            shutil.move(os.path.join(self.build_lib, name), os.path.join(library, "python", name))
        with open(os.path.join(self.build_lib, "nvc.pth"), "w", encoding="ascii") as path:
            path.write("../../nvc/python\n")
        native = os.path.join(REPO, NATIVE)
        shutil.copytree(f"{native}/simdriver", f"{library}/simdriver", ignore=shutil.ignore_patterns(".obj"))
        shutil.copytree(f"{native}/vgpu", f"{library}/vgpu/current", ignore=shutil.ignore_patterns(".obj"))
        with open(os.path.join(library, "launch.conf"), "w", encoding="ascii") as conf:
            conf.write(launch_conf())
        tree.install_programs(native, os.path.join(root, "bin"))
        tree.close_to_others(root)
        self.distribution.data_files = [
            (os.path.relpath(path, root), [os.path.join(path, name) for name in names])
            for path, _, names in os.walk(root)
            if names
        ]


setup(cffi_modules=["native/core/build.py:ffi"], cmdclass={"build": Build})
