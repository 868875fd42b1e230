"""`nvc-cli sim`: from words to what is asked of the library, and what is printed."""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner
from support import REPO

from nvc.base.errors import InputError
from nvc.testing.sim import SimSpec, create
from nvc.testing.sim.models import MODELS
from nvc.testing.sim.spec import gpus_of
from nvc_cli.sim import parse_layouts, parse_numbers, parse_size, sim, spec_of

pytestmark = pytest.mark.usefixtures("built_simdriver")


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("4096", 4096), ("1K", 1024), ("512MiB", 512 << 20), ("16G", 16 << 30), ("2TiB", 2 << 40)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1.5G", "10gb", "1e9", "1 G", "GiB", "9" * 16])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(InputError, match="not a size; for example 16GiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("values", "layouts"),
    [
        ((), ()),
        (("7x1g.10gb",), ("7x1g.10gb", "7x1g.10gb", "7x1g.10gb")),
        (("1:3g.40gb,2g.20gb",), ("", "3g.40gb,2g.20gb", "")),
        (("on", "2:"), ("on", "on", "")),
    ],
)
def test_layouts(values: tuple[str, ...], layouts: tuple[str, ...]) -> None:
    assert parse_layouts(values, 3) == layouts


@pytest.mark.parametrize("value", ["3:on", "-1:on", "x:on", ":on"])
def test_layouts_for_gpus_that_are_not_there(value: str) -> None:
    with pytest.raises(InputError, match="it has 3 GPUs, counted from 0"):
        parse_layouts((value,), 3)


def test_numbers() -> None:
    assert parse_numbers("minors", "") == ()
    assert parse_numbers("minors", "3,0,12") == (3, 0, 12)
    for text in ("1,", "1,,2", "-1", "a", "1 ,2", "9" * 10):
        with pytest.raises(InputError, match="read --minors"):
            parse_numbers("minors", text)


def invoke(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(sim, words)
    if isinstance(done.exception, InputError):
        raise done.exception
    return done.exit_code, done.output


def given(*words: str) -> SimSpec:
    """What `sim create` would make of these options."""
    context = sim.commands["create"].make_context("create", ["directory", *words])
    return spec_of({name: value for name, value in context.params.items() if name != "directory"})


def test_every_option_reaches_the_library() -> None:
    assert given() == SimSpec()
    assert given("--gpus", "2", "--model", "a100", "--memory", "40GiB", "--minors", "1,0") == SimSpec(
        gpus=2, model="a100", memory=40 << 30, minors=(1, 0)
    )
    assert given("--gpus=2", "--mig=1:on", "--imex-channel=0", "--imex-channel=5") == SimSpec(
        gpus=2, mig=("", "on"), imex_channels=(0, 5)
    )
    assert given(
        "--driver-version=550.1.2", "--cuda-version=12.4", "--seed=x", "--libdir=/opt/lib"
    ) == SimSpec(driver_version="550.1.2", cuda_version="12.4", seed="x", libdir="/opt/lib")
    assert given("--no-persistenced", "--fabricmanager", "--mps", "--no-compat32") == SimSpec(
        persistenced=False, fabricmanager=True, mps=True, compat32=False
    )
    assert given("--combined-cache", "--second-copy", "--stale-entry", "--smi-wrapper") == SimSpec(
        cache="combined", second_copy=True, stale_entry=True, smi_wrapper=True
    )
    assert given("--without-cache", "--no-device-nodes") == SimSpec(cache="none", device_nodes=False)


def test_contradictions() -> None:
    with pytest.raises(InputError, match="contradicts --combined-cache"):
        given("--without-cache", "--combined-cache")


def test_show(tmp_path: os.PathLike[str], capfd: pytest.CaptureFixture[str]) -> None:
    root = os.path.join(tmp_path, "sim")
    spec = SimSpec(gpus=2, mig=("2x3g.40gb", ""), device_nodes=False)
    create(root, spec)
    gpus = gpus_of(spec)
    assert invoke("show", root)[0] == 0
    text = capfd.readouterr().out
    assert text.startswith("driver 580.159.04 (simulated), CUDA 13.0; memory in MiB\n\nDEVICE  MINOR  BUS")
    rows = text.splitlines()[3:]
    assert [row.split()[0] for row in rows] == ["0", "0:0", "0:1", "1"]
    assert rows[0].endswith(gpus[0].uuid) and rows[1].endswith(gpus[0].mig[0].uuid)
    assert invoke("show", root, "--format", "json")[0] == 0
    shown = json.loads(capfd.readouterr().out)
    assert (shown["driver_version"], shown["processes"]) == ("580.159.04", [])
    assert shown["gpus"][0]["mig"][1]["uuid"] == gpus[0].mig[1].uuid
    assert shown["gpus"][1]["memory"] == gpus[1].memory
    assert invoke("destroy", root) == (0, "")
    assert not os.path.exists(root)


def test_the_page_has_every_option_and_model() -> None:
    with open(os.path.join(REPO, "docs/simulated-driver.md"), encoding="utf-8") as file:
        page = file.read()
    for command in sim.commands.values():
        assert f"sim {command.name}" in page
        for option in command.params:
            assert not option.opts[0].startswith("--") or option.opts[0] in page, option.opts
    for model in MODELS:
        assert f"`{model}`" in page
