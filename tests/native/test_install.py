"""What `make install` and the bundle's `install` put on a host really starts, and only root could change it."""

from __future__ import annotations

import glob
import os
import shutil
import stat
import sys
from collections.abc import Iterator

import pytest
from support import REPO, need, run
from support.builds import make

PROGRAMS = ("nvc-cli", "nvc-hook", "nvc-cdi-hook", "nvc-runtime")
UNCHECKED_HASH = b"\x01\x00\x00\x00"  # PEP 552: flags after the magic number


def everything(directory: str) -> Iterator[str]:
    for path, _, files in os.walk(directory):
        yield path
        yield from (os.path.join(path, name) for name in files)


def check_tree(prefix: str) -> None:
    """Owned by root, closed to others, complete, and compiled for good."""
    for path in everything(prefix):
        st = os.lstat(path)
        assert (st.st_uid, st.st_gid) == (0, 0), path
        assert stat.S_ISLNK(st.st_mode) or not st.st_mode & 0o022, path
        assert stat.S_ISLNK(st.st_mode) or st.st_mode & 0o004, path
    for source in glob.glob(os.path.join(prefix, "lib/nvc/python/**/*.py"), recursive=True):
        directory, name = os.path.split(source)
        (compiled,) = glob.glob(os.path.join(directory, "__pycache__", f"{name.removesuffix('.py')}.*.pyc"))
        with open(compiled, "rb") as code:
            assert code.read(8)[4:] == UNCHECKED_HASH, compiled


def check_archive(prefix: str, scratch: str) -> None:
    """A start takes its modules from the archive. Spoils the tree."""
    library = os.path.join(prefix, "lib/nvc")
    command = [os.path.join(prefix, "bin/nvc-cli"), "--root", os.path.join(scratch, "driver"), "list"]
    archive = os.path.join(library, "hot.bin")
    with open(archive, "rb") as file:
        whole = file.read()
    wanted = run(*command).stdout

    # Another version of Python, and installations without an archive, do with the files.
    for data in (whole[:4] + b"\0\0\r\n" + whole[8:], None):
        os.unlink(archive)
        if data:
            with open(archive, "wb") as out:
                out.write(data)
        assert run(*command).stdout == wanted
    # To go on without a damaged one would hide the damage: nothing but time would tell.
    for damaged in (b"", whole[:15], whole[:-1], b"x" + whole):
        with open(archive, "wb") as out:
            out.write(damaged)
        done = run(*command, check=False)
        assert done.returncode == 1
        assert (
            done.stderr
            == f"nvc-cli: initialization error: {archive}: the file is damaged; install nvc again\n"
        )

    with open(archive, "wb") as out:
        out.write(whole)
    for directory in glob.glob(os.path.join(library, "python/**/__pycache__"), recursive=True):
        shutil.rmtree(directory)
    for source in glob.glob(os.path.join(library, "python/**/*.py"), recursive=True):
        if source.endswith("/library_table.py"):
            continue  # with another one, what is known of the driver would be found anew
        with open(source, "w", encoding="utf-8") as code:
            code.write("raise SystemExit('a module of its own')\n")
    assert run(*command).stdout == wanted
    os.unlink(archive)
    assert "a module of its own" in run(*command, check=False).stderr


def check_runs(prefix: str, scratch: str) -> None:
    """The command line, its click tree, the compiled core and the simulated driver all work from there."""
    nvc = os.path.join(prefix, "bin/nvc-cli")
    driver = os.path.join(scratch, "driver")
    assert "--pid" in run(nvc, "configure", "--help").stdout
    assert run(nvc, "--version").stdout
    assert run(os.path.join(prefix, "bin/nvc-spin"), "--help").stdout.startswith("Usage: nvc-spin ")
    run(nvc, "sim", "create", driver, "--gpus", "2", "--model", "h100")
    assert run(nvc, "--root", driver, "--no-inventory", "info").stdout.count("GPU UUID") == 2


@pytest.mark.nightly
def test_make_install(stage: str, scratch: str) -> None:
    prefix = os.path.join(scratch, "prefix")
    make("install", f"PREFIX={prefix}")
    check_tree(prefix)
    check_runs(prefix, scratch)
    # The sources are there to be read; what runs is the bytecode, whatever happens to their time stamps.
    with open(os.path.join(prefix, "lib/nvc/python/nvc_cli/boot.py"), "a", encoding="utf-8") as source:
        source.write("raise SystemExit('recompiled')\n")
    run(os.path.join(prefix, "bin/nvc-cli"), "--version")
    check_archive(prefix, scratch)


@pytest.mark.nightly
def test_make_install_below_destdir(stage: str, scratch: str) -> None:
    """A package's tree names the place where it will be, not where it was laid out."""
    make("install", "PREFIX=/opt/nvc", f"DESTDIR={scratch}/package")
    library = os.path.join(scratch, "package/opt/nvc/lib/nvc")
    check_tree(os.path.dirname(os.path.dirname(library)))
    with open(os.path.join(library, "launch.conf"), encoding="ascii") as conf:
        lines = conf.read().splitlines()
    assert lines[0].startswith("interpreter /") and lines[1:] == ["path /opt/nvc/lib/nvc/site"]
    for path in everything(library):
        with open(path, "rb") if os.path.isfile(path) else open(os.devnull, "rb") as file:
            assert scratch.encode() not in file.read(), path


def interpreters() -> list[str]:
    """The distribution's Python, and the one of this environment where that is another."""
    own = f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    return sorted({os.path.realpath(path) for path in (need("python3"), own)})


@pytest.fixture(scope="module")
def bundle(stage: str) -> str:
    make("bundle")
    return os.path.join(REPO, "build/bundle")


@pytest.mark.nightly
@pytest.mark.parametrize("interpreter", interpreters())
def test_the_bundle_installs_without_a_network(bundle: str, scratch: str, interpreter: str) -> None:
    prefix = os.path.join(scratch, "prefix")
    run(need("unshare"), "--net", os.path.join(bundle, "install"), prefix, interpreter)
    check_tree(prefix)
    check_runs(prefix, scratch)
    check_archive(prefix, scratch)


@pytest.mark.nightly
def test_the_bundles_tests_find_what_they_import(bundle: str) -> None:
    """Those of claims too, which need the plugin's packages."""
    done = run(need("unshare"), "--net", os.path.join(bundle, "gpu-tests"), "--collect-only", timeout=300)
    assert "test_claims.py::test_pytorch_in_two_claims" in done.stdout and "error" not in done.stdout.lower()


@pytest.mark.nightly
def test_the_bundle_carries_what_it_promises(bundle: str) -> None:
    total = sum(os.lstat(path).st_size for path in everything(bundle))
    assert total < 72 << 20
    with open(os.path.join(bundle, "copyright"), encoding="utf-8") as notice:
        text = notice.read()
    for name in ("cffi", "click", "python-prctl", "pytest", "grpcio"):
        assert f"\nComment: {name} " in text
    assert "GPL" in text.partition("\nComment: python-prctl ")[2].partition("\nLicense: ")[2].partition("\n")[0]
    for name in ("busybox-static", "runc", "libc6"):
        assert os.path.exists(os.path.join(bundle, "licenses", f"{name}.txt"))
    assert glob.glob(os.path.join(bundle, "sources/python-prctl-*"))
    for version in ("310", "311", "312", "313"):
        assert glob.glob(os.path.join(bundle, f"tree/lib/nvc/site/_cffi_backend*cpython-{version}-*.so"))
        assert glob.glob(os.path.join(bundle, f"tests/wheels/3.{version[1:]}/grpcio-*-cp{version}-*.whl"))
    assert os.path.exists(os.path.join(bundle, "tree/lib/nvc/site/tomli/__init__.py")), "for Python 3.10"
    run(os.path.join(bundle, "tools/runc"), "--version")
    run(os.path.join(bundle, "tools/busybox"), "true")
