"""docs/cli.md knows every option and every key of every document."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator

import pytest
from support import REPO
from support.facts import PLAN, facts

from nvc.doctor.codes import Explanation
from nvc.model.request import Request
from nvc.model.selection import select
from nvc.plan import listing
from nvc.plan.describe import VERBS, document
from nvc.slices.make.calibration import Measurement
from nvc_cli import ctk, ctk_cdi
from nvc_cli.main import LAZY
from nvc_cli.options import GLOBAL, HOT

with open(os.path.join(REPO, "docs/cli.md"), encoding="utf-8") as file:
    TEXT = re.sub(r"^```.*?^```$", "", file.read(), flags=re.MULTILINE | re.DOTALL)
#: Every word between backquotes, and the parts of dotted ones.
CODE = {part for code in re.findall(r"`([^`]+)`", TEXT) for part in re.split(r"[^A-Za-z0-9_-]+", code)}


def keys(value: object) -> Iterator[str]:
    """Every key of a document, at every depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)


@pytest.mark.parametrize("command", ["", *HOT])
def test_every_option(command: str) -> None:
    for name, letter, _, _, _ in HOT[command][0] if command else GLOBAL:
        assert f"--{name}" in CODE, name
        assert {f"-{one}" for one in letter} <= CODE | {"-?"}, name


def test_every_command() -> None:
    assert {*HOT, *LAZY} <= CODE
    assert all(f"`nvidia-ctk {name}" in TEXT for name in ctk.LAZY)


def test_every_option_that_nvidia_ctk_refuses() -> None:
    """With what it does of flags that ask for something else."""
    options = {name for one in ctk_cdi.generate_command.params for name in one.opts if not one.expose_value}
    assert options and all(f"`{name}`" in TEXT for name in options - {"--help"})
    assert all(f"`{flag}`" in TEXT for flag in (*ctk_cdi.HOLDS, *ctk_cdi.TURNS_OFF))


@pytest.mark.parametrize(
    "module",
    [
        "slices/store/status", "slices/admin/device_policy", "slices/show/history", "slices/admin/coverage",
        "slices/make/calibration", "doctor/codes",
    ],
)  # fmt: skip
def test_every_key_of_what_is_made_for_programs(module: str) -> None:
    """Keys of dictionaries in functions called `document`; of values that are printed as they are, the fields."""
    with open(os.path.join(REPO, "nvc", f"{module}.py"), encoding="utf-8") as file:
        tree = ast.parse(file.read())
    found = {
        key.value
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and function.name in ("document", "_time")
        for made in ast.walk(function)
        if isinstance(made, ast.Dict)
        for key in made.keys
        if isinstance(key, ast.Constant)
    }
    if not found:
        calibrated = module == "slices/make/calibration"
        found = set(Measurement._fields if calibrated else Explanation.__annotations__)
    assert found and found <= CODE, found - CODE


def test_every_key_of_every_document() -> None:
    host, request = facts(), Request(devices=("all",), imex_channels=(1,))
    kinds = ("devices", "binaries", "libraries", "ipcs", "firmwares")
    entries = listing.entries(host, select(host, request), request, kinds)
    for made in (listing.info_document(host), listing.list_document(host, entries), document(PLAN)):
        missing = set(keys(made)) - CODE
        assert not missing
    assert {entry.kind for entry in entries} <= CODE
    assert {operation["operation"] for operation in document(PLAN)["operations"]} <= CODE
    assert {*VERBS.values(), "allow", "tmpfs", "link", "ldcache"} <= CODE
