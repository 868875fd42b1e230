"""The table of variables: the hook, CDI, the doctor and docs/hooks.md follow it."""

from __future__ import annotations

import os

import pytest
from support import REPO

from nvc import environment
from nvc.config import Config
from nvc.environment import VARIABLES, Variable, is_known, request_from
from nvc.errors import InputError
from nvc.oci import Container
from nvc.runtime import give


def test_the_docs_have_every_row() -> None:
    with open(os.path.join(REPO, "docs/hooks.md"), encoding="utf-8") as file:
        text = file.read()
    missing = [row.name for row in VARIABLES if f"| `{row.name}` | {row.text} |\n" not in text]
    assert not missing, "run packaging/tables.py"


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
