"""Makes the bundle: all that a host without a network needs to install nvc and to test it on a GPU.

install PREFIX     puts nvc there, for whichever Python 3.10 to 3.13 the host has
gpu-tests          runs the tests that need a real driver; prints a report in Markdown
tree/              what `install` copies: bin, lib/nvc
archive/           what makes the archive of modules that a container start loads
tools/             busybox and runc, for hosts without them
tests/             the tests and what they need; site/ has pytest
THIRD-PARTY.md     whose work is inside, under which licences; licenses/ has the texts
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

import tree

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
#: pytest and what it needs; the last three only under Python 3.10.
TEST_PACKAGES = (
    *("pytest", "pluggy", "iniconfig", "packaging", "pygments"),
    *("exceptiongroup", "tomli", "typing-extensions"),
)
LIMIT = 48 << 20  # bytes
#: Programs of the build machine, with the Debian package that each is from.
TOOLS = {"busybox": "busybox-static", "runc": "runc"}
NOTES = {
    "python-prctl": "GPL-3.0-or-later; its source is in sources/. nvc imports it outside containers only.",
    "busybox": "a program of its own, used by the tests; its source is Debian's package of this version.",
    "libc6": "linked statically into the launcher.",
}


def pins() -> dict[str, str]:
    """The pinned version of each package, by name."""
    with open(os.path.join(tree.REPO, "packaging/requirements.txt"), encoding="utf-8") as lines:
        return dict(line.split(";")[0].strip().split("==") for line in lines if "==" in line)


def download(target: str, *arguments: str) -> None:
    pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "-d", target, *arguments], check=True, stderr=subprocess.PIPE)


def wheel(name: str, version: str, cache: str) -> str:
    """The path of the pinned wheel of `name` for one version of Python; downloaded once."""
    machine = platform.machine()
    places = [f"--platform=manylinux{tag}_{machine}" for tag in ("2014", "_2_17", "_2_28")]
    pinned = f"{name}=={pins()[name]}"
    target = os.path.join(cache, f"cp{version.replace('.', '')}", pinned)
    if not os.path.isdir(target) or not os.listdir(target):
        download(target, pinned, f"--python-version={version}", "--only-binary=:all:", *places)
    return os.path.join(target, os.listdir(target)[0])


def unpack(path: str, target: str, only: str = "") -> None:
    """Unpack a wheel: all of it, or its metadata and what begins with `only`."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if not only or name.startswith(only) or ".dist-info/" in name:
                archive.extract(name, target)


#: What tests/support/vgpushim.py compiles, on the host that it measures.
SHIM_TOOL = {
    "tests/native": ("vgpu_tool.c", "vgpu_tool_crowd.c", "vgpu_tool_paths.c", "vgpu_tool.h"),
    "native/vgpu": ("real.h", "abi.h", "entries.def"),
}


def native_packages(library: str, cache: str, sources: str) -> None:
    """site-cpXY for each version: what is compiled for one Python only."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    for version in PYTHONS:
        site = os.path.join(library, f"site-cp{version.replace('.', '')}")
        unpack(wheel("cffi", version, cache), site, "_cffi_backend")
        if version == own:
            # There are no wheels of it; for other versions `import prctl` fails and says so.
            tree.copy_distribution("python-prctl", site)
    download(sources, "--no-binary=:all:", "--no-build-isolation", f"python-prctl=={pins()['python-prctl']}")


def test_packages(bundle: str, cache: str) -> None:
    """pytest for every version, as pure Python wheels."""
    site = os.path.join(bundle, "tests/site")
    for name in TEST_PACKAGES:
        unpack(wheel(name, "3.10", cache), site)


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
            shutil.copy(os.path.join(tree.REPO, folder, name), os.path.join(bundle, folder))


def program(name: str) -> str:
    found = shutil.which(name, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    if not found:
        raise SystemExit(f"bundle: {name} is missing: run `make setup`")
    return os.path.realpath(found)


def tools(bundle: str) -> None:
    os.makedirs(os.path.join(bundle, "tools"))
    for name in TOOLS:
        shutil.copy(program(name), os.path.join(bundle, "tools", name))


def debian_version(package: str) -> str:
    query = ["dpkg-query", "-W", "-f", "${Version}", package]
    return subprocess.run(query, check=True, capture_output=True, text=True).stdout


def notice(bundle: str) -> None:
    """THIRD-PARTY.md and licenses/: from the packages' own metadata and Debian's copyright files."""
    licenses = os.path.join(bundle, "licenses")
    os.makedirs(licenses)
    rows = []
    for path, names, _ in os.walk(bundle):
        for name in [name for name in names if name.endswith(".dist-info")]:
            found = importlib.metadata.Distribution.at(os.path.join(path, name))
            where = os.path.relpath(path, bundle)
            rows.append((found.name, found.version, license_of(found), where))
            texts = [
                str(file)
                for file in found.files or ()
                if re.search(r"(?i)/(licen[cs]e|copying|notice)", str(file))
            ]
            for number, text in enumerate(texts):
                source = os.path.join(path, text)
                if os.path.isfile(source):
                    shutil.copy(source, os.path.join(licenses, f"{found.name}{number or ''}.txt"))
    for package in (*TOOLS.values(), "libc6"):
        rows.append(
            (package, debian_version(package), "see licenses/", "bin" if package == "libc6" else "tools")
        )
        shutil.copy(f"/usr/share/doc/{package}/copyright", os.path.join(licenses, f"{package}.txt"))
    with open(os.path.join(bundle, "THIRD-PARTY.md"), "w", encoding="utf-8") as out:
        out.write(
            "# Third-party software in this bundle\n\nnvc itself is Apache-2.0 (licenses/nvc.txt).\n\n"
        )
        out.write("| package | version | licence | where | note |\n| --- | --- | --- | --- | --- |\n")
        for row in sorted(set(rows), key=str):
            note = NOTES.get(row[0], NOTES.get(row[0].split("-")[0], ""))
            out.write(f"| {' | '.join(row)} | {note} |\n")
    shutil.copy(os.path.join(tree.REPO, "LICENSE"), os.path.join(licenses, "nvc.txt"))


def license_of(distribution: importlib.metadata.Distribution) -> str:
    """The licence that a package states: expression, classifier or field."""
    metadata = distribution.metadata
    classifiers = [
        line.split(" :: ")[-1] for line in metadata.get_all("Classifier") or () if "License ::" in line
    ]
    stated: list[str] = [*(metadata.get_all("License-Expression") or ()), ", ".join(classifiers)]
    stated += [*(metadata.get_all("License") or ()), "unknown"]
    return next(text for text in stated if text).splitlines()[0]


def size(directory: str) -> int:
    return sum(
        os.lstat(os.path.join(path, name)).st_size for path, _, names in os.walk(directory) for name in names
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the bundle for hosts without a network.")
    parser.add_argument("bundle")
    parser.add_argument("--launcher", required=True)
    parser.add_argument("--simdriver", required=True)
    parser.add_argument("--shim", required=True)
    options = parser.parse_args()

    bundle = os.path.abspath(options.bundle)
    cache = os.path.join(os.path.dirname(bundle), "wheels")
    with tempfile.TemporaryDirectory(dir=os.path.dirname(bundle)) as made:
        library = os.path.join(made, "tree/lib/nvc")
        tree.copy_tree(os.path.join(made, "tree"), options.simdriver, native=False, shims=options.shim)
        tree.install_programs(options.launcher, os.path.join(made, "tree/bin"))
        native_packages(library, cache, os.path.join(made, "sources"))
        tools(made)
        tests(made)
        test_packages(made, cache)
        notice(made)
        shutil.copytree(
            os.path.join(tree.REPO, "packaging/archive"), os.path.join(made, "archive"), ignore=tree.IGNORED
        )
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
