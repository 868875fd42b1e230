"""Makes the bundle: all that a host without a network needs to install nvc and to test it on a GPU.

install PREFIX     puts nvc there, for whichever Python 3.10 to 3.13 the host has
gpu-tests          runs the tests that need a real driver; prints a report in Markdown
tree/              what `install` copies: bin, lib/nvc
tools/             busybox and runc, for hosts without them
tests/             the tests and what they need; site/ has pytest, wheels/ gRPC for each Python
copyright          whose work is inside, under which licences; licenses/ has those of Debian's packages
"""

from __future__ import annotations

import argparse
import glob
import os
import shutil
import tempfile

import notice
import share
import tree
import wheels

#: pytest and what it needs; the last three only under Python 3.10.
TEST_PACKAGES = (
    *("pytest", "pluggy", "iniconfig", "packaging", "pygments"),
    *("exceptiongroup", "tomli", "typing-extensions"),
)
#: What nvc-kubelet-plugin needs beside an installation. The first is compiled for one version of Python, and large:
#: so it stays packed, and gpu-tests unpacks that of the host's.
PLUGIN_PACKAGES = ("grpcio", "protobuf", "typing-extensions")
LIMIT = 72 << 20  # bytes
#: Programs of the build machine, with the Debian package that each is from.
TOOLS = {"busybox": "busybox-static", "runc": "runc"}
#: What tests/support/vgpushim.py compiles, on the host that it measures.
SHIM_TOOL = {
    "tests/native": ("vgpu_tool*.[ch]", "vgpu_work.c", "vgpu_steps.c"),
    "tests/adversary": ("*.[ch]",),
    "native/abi": ("cuda*.h", "cuda.def"),
    "native/vgpu/process": ("*.h",),
}


def native_packages(library: str, cache: str, sources: str) -> None:
    """What is compiled for one version of Python, and the source of what is under the GPL."""
    site = os.path.join(library, "site")
    wheels.every_python(site, cache)
    # There are no wheels of it; for other versions `import prctl` fails and says so.
    tree.copy_distribution("python-prctl", site)
    pinned = f"python-prctl=={wheels.pins()['python-prctl']}"
    wheels.download(sources, "--no-binary=:all:", "--no-build-isolation", pinned)


def test_packages(bundle: str, cache: str) -> None:
    """pytest for every version, as pure Python wheels."""
    site = os.path.join(bundle, "tests/site")
    for name in TEST_PACKAGES:
        wheels.unpack(wheels.wheel(name, "3.10", cache), site)


def plugin_packages(bundle: str, cache: str) -> None:
    """tests/wheels/VERSION: what the plugin needs under that version of Python."""
    for version in wheels.PYTHONS:
        target = os.path.join(bundle, "tests/wheels", version)
        os.makedirs(target)
        for name in PLUGIN_PACKAGES:
            path = wheels.wheel(name, version, cache)
            shutil.copy(path, target)
            wheels.unpack(path, os.path.join(bundle, "tests/wheels/metadata"), "-")  # for `notice`


def tests(bundle: str) -> None:
    os.makedirs(os.path.join(bundle, "tests"))
    for name in ("conftest.py", "support", "gpu", "bench"):
        source, target = os.path.join(tree.REPO, "tests", name), os.path.join(bundle, "tests", name)
        if os.path.isdir(source):
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    for folder, names in SHIM_TOOL.items():
        os.makedirs(os.path.join(bundle, folder), exist_ok=True)
        for name in names:
            for path in glob.glob(os.path.join(tree.REPO, folder, name)):
                shutil.copy(path, os.path.join(bundle, folder))


def program(name: str) -> str:
    found = shutil.which(name, path=":".join(tree.PLACES))
    if not found:
        raise SystemExit(f"bundle: {name} is missing: run `make setup`")
    return os.path.realpath(found)


def tools(bundle: str) -> None:
    os.makedirs(os.path.join(bundle, "tools"))
    for name in TOOLS:
        shutil.copy(program(name), os.path.join(bundle, "tools", name))


def size(directory: str) -> int:
    return sum(
        os.lstat(os.path.join(path, name)).st_size for path, _, names in os.walk(directory) for name in names
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the bundle for hosts without a network.")
    parser.add_argument("bundle")
    options = parser.parse_args()
    bundle = os.path.abspath(options.bundle)
    cache = os.path.join(os.path.dirname(bundle), "wheels")
    with tempfile.TemporaryDirectory(dir=os.path.dirname(bundle)) as made:
        library = os.path.join(made, "tree/lib/nvc")
        tree.copy_tree(os.path.join(made, "tree"), share.BUILD, native=False)
        tree.install_programs(share.BUILD, os.path.join(made, "tree/bin"))
        native_packages(library, cache, os.path.join(made, "sources"))
        tools(made)
        tests(made)
        test_packages(made, cache)
        plugin_packages(made, cache)
        notice.write(made, made, (*TOOLS.values(), notice.STATIC))
        for name in ("install", "gpu-tests", "bench", "prepare.sh"):
            shutil.copy(os.path.join(tree.REPO, "packaging/bundle", name), made)
        if size(made) > LIMIT:
            raise SystemExit(f"bundle: {size(made)} bytes, more than {LIMIT}")
        os.chmod(made, 0o755)
        tree.remove(bundle)
        shutil.copytree(made, bundle, symlinks=True)
    print(f"{options.bundle}: {size(bundle) / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
