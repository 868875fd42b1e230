"""From option values to requests: what is accepted, what is refused, and with which words."""

from __future__ import annotations

import os
import pwd
from typing import Any

import pytest

from nvc.base.errors import InputError
from nvc.model.request import DriverOptions, Request
from nvc_cli import arguments
from nvc_cli.options import OMITTED
from nvc_cli.parse import parse_line

ROOT = pwd.getpwuid(0)


def request(*words: str) -> Request:
    return arguments.request(parse_line(["configure", *words]).words.values)


def options(*words: str, **more: Any) -> DriverOptions:
    return arguments.driver_options(parse_line([*words]).globals.values, **more)


def refusal(made: Any, *arguments_: Any) -> str:
    with pytest.raises(InputError) as error:
        made(*arguments_)
    assert str(error.value).startswith("input error: ")
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 1200
    return str(error.value).removeprefix("input error: ")


def test_every_option_of_configure_reaches_the_request() -> None:
    given_words = (
        "--device=0,,1 -d GPU-x --require=cuda>=12 -r arch>=7 --ldconfig=@/sbin/ldconfig --ngx --utility -c "
        "--mig-config=all --mig-monitor all --imex-channel=1,2 --imex-channel 3 --no-cgroups --no-devbind "
        "--no-persistenced --no-fabricmanager --no-gsp-firmware --cuda-compat-mode=mount --compat32 -vgD"
    )
    assert request(*given_words.split()) == Request(
        devices=("0", "1", "GPU-x"),
        capabilities=("utility", "compute", "video", "graphics", "display", "ngx", "compat32"),
        requirements=("cuda>=12", "arch>=7"),
        mig_config="all",
        mig_monitor="all",
        imex_channels=(1, 2, 3),
        cgroups=False,
        devbind=False,
        persistenced=False,
        fabricmanager=False,
        gsp_firmware=False,
        cuda_compat_mode="mount",
        ldconfig="@/sbin/ldconfig",
    )


def test_every_global_option_reaches_the_driver_options() -> None:
    words = "-k -n -u1:2 --root=/d -l /c --no-create-imex-channels --no-inventory --timeout 2.5".split()
    assert options(*words, channels=(4,)) == DriverOptions(
        root="/d",
        ldcache="/c",
        uid=1,
        gid=2,
        load_kmods=True,
        create_imex_channels=False,
        imex_channels=(4,),
        inventory=False,
        timeout=2.5,
    )


def test_no_cntlibs_wins() -> None:
    assert request("--no-cntlibs").cuda_compat_mode == "disabled"
    assert request("--cuda-compat-mode=mount", "--no-cntlibs").cuda_compat_mode == "disabled"
    assert refusal(request, "--cuda-compat-mode=hook").startswith(
        "--cuda-compat-mode: hook: want ldconfig, mount or disabled"
    )


def test_requirements_are_limited() -> None:
    assert len(request(*["--require=cuda>=1"] * 32).requirements) == 32
    assert refusal(request, *["--require=cuda>=1"] * 33).startswith("too many requirements")


@pytest.mark.parametrize("channels", ["-1", "a", "1048576", "1,+2", "0x1", "1 ", "١", "9" * 5000])
def test_imex_channels_are_numbers(channels: str) -> None:
    assert refusal(request, f"--imex-channel={channels}").startswith("error parsing IMEX info: ")


@pytest.mark.parametrize(("text", "wanted"), [("0", 0), ("1", 1), ("007", 7), ("2147483647", 2147483647)])
def test_pid(text: str, wanted: int) -> None:
    assert arguments.pid({"pid": text}) == wanted
    assert arguments.pid({}) == 0


@pytest.mark.parametrize("text", ["", "-1", "+1", "1 ", "x", "1.0", "2147483648", "9" * 5000, "١"])
def test_bad_pid(text: str) -> None:
    assert refusal(arguments.pid, {"pid": text}).startswith("parse pid failed")


@pytest.mark.parametrize("path", ["", "run/c", "/", "//", "/.", "/../", "/./..", ".", "/c\0d"])
def test_bad_rootfs(path: str) -> None:
    assert refusal(arguments.rootfs, (path,)).startswith("invalid rootfs directory")


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        (OMITTED, (os.geteuid(), os.getegid())), ("1000:2000", (1000, 2000)),
        ("4294967294:0", (4294967294, 0)), ("0", (0, ROOT.pw_gid)), ("0:", (0, ROOT.pw_gid)),
        (ROOT.pw_name, (0, ROOT.pw_gid)), (f"{ROOT.pw_name}:7", (0, 7)), (f"7:{ROOT.pw_name}", (7, 0)),
    ],
)  # fmt: skip
def test_user(spec: str, wanted: tuple[int, int]) -> None:
    assert arguments.user(spec) == wanted


@pytest.mark.parametrize(
    "spec",
    ["", ":", ":0", "no-such-user", "0:no-such-group", "4294967295:0", "0:4294967295", "0x1", "-1", "1:2:3", "²",
     "4294967290", "a\nb"],
)  # fmt: skip
def test_bad_user(spec: str) -> None:
    assert refusal(arguments.user, spec).startswith("parse user/group failed")


def test_info_and_list_run_as_their_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvc_cli.arguments.posix.geteuid", lambda: 1234)
    monkeypatch.setattr("nvc_cli.arguments.posix.getegid", lambda: 5678)
    assert (options(own_ids=True).uid, options(own_ids=True).gid) == (1234, 5678)
    assert (options("--user=1:2", own_ids=True).uid, options("--user=1:2", own_ids=True).gid) == (1, 2)
    assert options().uid == -1
    monkeypatch.setattr("nvc_cli.arguments.posix.geteuid", lambda: 0)
    assert options(own_ids=True).uid == -1  # root leaves its rights behind


def test_a_relative_root_is_from_here(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert options("--root=sim").root == f"{tmp_path}/sim"


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "nan", "inf", "3601", "1e9"])
def test_bad_timeout(text: str) -> None:
    assert refusal(options, f"--timeout={text}").startswith("--timeout")


def test_the_mps_directory_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {b"CUDA_MPS_PIPE_DIRECTORY": b"/run/mps"}
    monkeypatch.setattr("nvc_cli.arguments.posix.environ", environment)
    assert options().mps_directory == "/run/mps"
    environment[b"CUDA_MPS_PIPE_DIRECTORY"] = b"relative"
    assert options().mps_directory == DriverOptions().mps_directory
