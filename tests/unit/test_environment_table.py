"""The table of variables: the hook, CDI, the doctor and docs/hooks.md follow it."""

from __future__ import annotations

import os

import pytest
from support import REPO

from nvc.base.errors import InputError
from nvc.frontends.runtime import give
from nvc.model.slices import variables
from nvc.request import environment
from nvc.request.config import Config
from nvc.request.environment import SLICES, VARIABLES, Variable, is_known, request_from
from nvc.request.oci import Container


def test_the_docs_have_every_row() -> None:
    with open(os.path.join(REPO, "docs/hooks.md"), encoding="utf-8") as file:
        text = file.read()
    missing = [row.name for row in VARIABLES if f"| `{row.name}` | {row.text} |\n" not in text]
    assert not missing, "run packaging/tables.py"


def test_the_docs_have_every_variable_that_asks_for_a_slice() -> None:
    with open(os.path.join(REPO, "docs/vgpu.md"), encoding="utf-8") as file:
        section = file.read().partition("### Variables\n")[2].partition("\n### ")[0]
    missing = [name for name in environment.SLICES if f"| `{name}" not in section and f", `{name}" not in section]
    assert not missing, missing


def test_a_variable_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Variable("NVIDIA_TRIAL", "", "mig_config", lambda asking, *_: asking.environment["NVIDIA_TRIAL"], False)
    rows = (*(one for one in VARIABLES if one.field != row.field), row)
    for module in (environment, give):
        monkeypatch.setattr(module, "VARIABLES", rows)
    container = Container("/r", {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_TRIAL": "value"})
    request = request_from(container, Config())
    assert request is not None and request.mig_config == "value"
    with pytest.raises(InputError, match="NVIDIA_TRIAL: what it asks for cannot be given by CDI"):
        give._check_expressible(request)
    assert is_known("NVIDIA_TRIAL") and not is_known("NVIDIA_TRIALS")
    assert is_known("NVIDIA_REQUIRE_CUDA") and is_known("NVC_VGPU_MEMORY")


def test_what_asks_for_a_slice_is_known_without_what_reads_it() -> None:
    """The hook imports the readers of slices' variables only where one of SLICES is set."""
    own = variables.VARIABLES.values()
    names = {*own, *(value for value in vars(variables).values() if isinstance(value, str) and "_" in value)}
    asking = set()
    for name in names:
        for value in ("2", "1GiB", "mps", "50ms", "signal:USR1", "10m", "swap"):
            try:
                if variables.slice_from({name: value}) is not None:
                    asking.add(name)
            except InputError:
                pass
    assert {*own, variables.NVIDIA_LIMIT, variables.CGPU_WEIGHT} <= asking
    assert all(name.startswith(SLICES) for name in asking)
