"""LD_LIBRARY_PATH of a container: where its programs look first, for what gives slices and for the doctor."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import Any

import pytest

from nvc.base.errors import InputError
from nvc.discovery.containers.running import RunningContainer
from nvc.doctor.inside import Inside
from nvc.kernel import LinuxKernel
from nvc.request.config import Config
from nvc.request.environment import request_from
from nvc.request.oci import Container, container_of


def searched(path: str, program: str = "", config: Config | None = None, **variables: str) -> tuple[str, ...]:
    environment = {
        "NVIDIA_VISIBLE_DEVICES": "all", "NVC_VGPU_MEMORY": "4g", "LD_LIBRARY_PATH": path, **variables,
    }  # fmt: skip
    found = request_from(Container("/r", environment, program=program), config or Config())
    assert found is not None and found.vgpu is not None
    return found.vgpu.library_path


def test_directories() -> None:
    assert searched("/a:/b;/a::c:/$LIB/d") == ("/a", "/b", "/$LIB/d")


@pytest.mark.parametrize("asks", [{}, {"NVC_VGPU_MEMORY": ""}], ids=["asks", "does not"])
@pytest.mark.parametrize(
    "path",
    [":".join(f"/x{number}" for number in range(257)), "/x:" * 32768, "$ORIGIN/a:$ORIGIN/b", "/" + "ä" * 40000],
    ids=["many", "long", "many programs", "long in bytes"],
)
def test_more_directories_than_anybody_has(path: str, asks: dict[str, str]) -> None:
    """None is left out: behind them, there could be a copy of the driver's library."""
    programs = ":".join(f"/{number}" for number in range(200))
    with pytest.raises(InputError, match="LD_LIBRARY_PATH: .*more than 256 directories"):
        searched(path, config=Config(vgpu_memory="2GiB"), PATH=programs, **asks)


def test_directories_that_nobody_can_open() -> None:
    assert searched("$ORIGIN$ORIGIN:/a", PATH="/" + "b" * 4000) == ("/a",)
    assert searched("$ORIGIN:/a", PATH="/" + "b" * 5000) == ("/a",)


def test_as_many_directories_as_anybody_has() -> None:
    assert len(searched(":".join(f"/x{number % 256}" for number in range(1000)))) == 256


@pytest.mark.parametrize(
    ("process", "program"),
    [
        ({"args": ["/opt/p/go", "x"]}, "/opt/p/go"), ({"args": ["./go"], "cwd": "/opt"}, "/opt/./go"),
        ({"args": ["go"], "cwd": "/opt"}, ""), ({"args": ["p/go"]}, "p/go"), ({"args": []}, ""),
        ({"args": [1]}, ""), ({"args": "/x"}, ""), ({"args": None}, ""), ({}, ""),
    ],
)  # fmt: skip
def test_the_first_program(process: dict[str, Any], program: str) -> None:
    document = {"ociVersion": "1.0.2", "process": process, "root": {"path": "/r"}}
    assert container_of(document, "/b").program == program


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/none:DIR/a", "a"), ("/none;DIR/a", "a"), ("$ORIGIN/../..DIR/a", ""),
    ],
)  # fmt: skip
def test_what_the_doctor_says_that_is_loaded(path: str, place: str, tmp_path: Any) -> None:
    """Of a container that is this process."""
    path = path.replace("DIR", str(tmp_path))
    os.makedirs(f"{tmp_path}/a")
    if place:
        os.makedirs(f"{tmp_path}/{place}", exist_ok=True)
        shutil.copy(os.path.realpath(sys.executable), f"{tmp_path}/{place}/libnone.so.1")
    config = {"ociVersion": "1.0.2", "process": {"env": [f"LD_LIBRARY_PATH={path}"]}, "root": {"path": "/"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with Inside(LinuxKernel(), RunningContainer("x", os.getpid(), "x", str(tmp_path))) as inside:
        file, how = inside.loaded("libnone.so.1")
        assert (file.path if file else "") == (f"{tmp_path}/{place}/libnone.so.1" if place else ""), how
        own = os.path.dirname(os.path.realpath(sys.executable))
        assert place or inside.library_path() == (f"{own}/../..{tmp_path}/a",)


def test_the_doctor_expands_few_tokens(tmp_path: Any) -> None:
    """The container would say how much memory they take: such a path is left out."""
    path = "$ORIGIN" * 9000 + ":" + "$LIB/" * 200 + ":/a"
    config = {"ociVersion": "1.0.2", "process": {"env": [f"LD_LIBRARY_PATH={path}"]}, "root": {"path": "/"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with Inside(LinuxKernel(), RunningContainer("x", os.getpid(), "x", str(tmp_path))) as inside:
        assert inside.library_path() == ()
