"""The command line of nvc-cdi-hook, as our specifications and those of others spell it."""

from __future__ import annotations

import pytest

from nvc.base.errors import InputError
from nvc.frontends.cdi.hooks.arguments import container_path, parse_arguments
from nvc.frontends.cdi.hooks.modes import parse_mode


def test_several_steps_each_with_its_own_options() -> None:
    call = parse_arguments(
        ["--quiet", "enable-cuda-compat", "--host-driver-version=1.2", "update-ldcache", "--folder", "/a",
         "--ldconfig-path=/sbin/ldconfig", "disable-device-node-modification"]
    )  # fmt: skip
    assert [step.name for step in call.steps] == [
        "enable-cuda-compat", "update-ldcache", "disable-device-node-modification",
    ]  # fmt: skip
    assert call.quiet and not call.debug and call.steps[1].last("ldconfig-path") == "/sbin/ldconfig"


def test_a_value_may_look_like_anything() -> None:
    call = parse_arguments(["create-symlinks", "--link", "chmod", "--link", "--quiet", "--link", ""])
    assert call.steps[0].all("link") == ["chmod", "--quiet", ""] and not call.quiet


def test_an_unknown_hook_is_left_out_with_its_options() -> None:
    call = parse_arguments(["from-the-future", "--flag", "value", "x", "update-ldcache", "--folder=/a"])
    assert call.unknown == ("from-the-future",) and [step.name for step in call.steps] == ["update-ldcache"]
    assert parse_arguments(["from-the-future", "--whatever"]).unknown == ("from-the-future",)


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["create-symlinks"], "--link: is missing"),
        (["create-symlinks", "--link"], "--link: needs a value"),
        (["create-symlinks", "--folder=/a"], "--folder: no such option"),
        (["update-ldcache", "stray"], "stray: unexpected argument"),
        (["enable-cuda-compat"], "--host-driver-version: is missing"),
        (["chmod", "--mode=755"], "--path: is missing"),
        (["--unknown"], "--unknown: no such option"),
        (["--link=a::/b"], "--link: no such option"),
        (["x"] * 70000, "too many arguments"),
    ],
)
def test_misuse(argv: list[str], why: str) -> None:
    with pytest.raises(InputError) as error:
        parse_arguments(argv)
    assert why in str(error.value)


@pytest.mark.parametrize("path", ["", "/", "a", "a/b", "/a/..", "/a/.", "/..", "/a\0b", "/" + "a" * 5000])
def test_paths_must_be_absolute_and_end_in_a_name(path: str) -> None:
    with pytest.raises(InputError, match="absolute path"):
        container_path("chmod", "path", path)


def test_modes_are_permission_bits_only() -> None:
    assert parse_mode("755") == 0o755 and parse_mode("0000") == 0
    for text in ("", "4755", "1777", "888", "0x1", "-1", "7777777"):
        with pytest.raises(InputError, match="octal"):
            parse_mode(text)
