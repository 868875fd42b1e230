"""Each class of the error tree has a code of its own, and the code is explained."""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil

import pytest
from support.prose import read, sources
from support.sources import tree

import nvc
import nvc_cli
import nvc_hooks
from nvc.base.errors import InputError, MountError, NvcError
from nvc.doctor.catalog import choose
from nvc.doctor.codes import BY_CODE, EXPLANATIONS, explain, text_of
from nvc.model.slices.policy import WITHOUT_NVCD


def classes() -> list[type[NvcError]]:
    """Every class of the tree, in whatever module of the project."""
    for package in (nvc, nvc_cli, nvc_hooks):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.startswith("nvc._"):
                importlib.import_module(found.name)
    known: list[type[NvcError]] = [NvcError]
    for known_class in known:
        known += [one for one in known_class.__subclasses__() if one not in known]
    return [one for one in known if one.__module__.split(".")[0] in ("nvc", "nvc_cli", "nvc_hooks")]


def test_every_class_has_a_code_of_its_own() -> None:
    codes: dict[str, str] = {}
    for one in classes():
        place = f"{one.__module__}.{one.__name__}"
        assert "code" in vars(one), (
            f"{place}: give it a code that is not in docs/errors.md, and explain it there"
        )
        assert codes.setdefault(one.code, one.__name__) == one.__name__, (
            f"{place}: {one.code} is {codes[one.code]}'s"
        )
        found = BY_CODE[one.code]
        assert (found.name, found.stage, found.checks) == (one.__name__, one.stage, one.doctor), place
    assert set(codes) == set(BY_CODE), "codes without a class"
    assert len(BY_CODE) == len(EXPLANATIONS)


def test_an_explanation() -> None:
    for code in BY_CODE:
        found = BY_CODE[code]
        assert found.meaning.endswith(".") and found.causes and found.remedies, code
        text = text_of(found)
        assert text.startswith(f"{code}: {found.stage} error\n") and all(
            len(line) <= 120 for line in text.splitlines()
        )
        if found.checks:
            assert (
                choose(tuple(found.checks.split()), ("container", "kubernetes", "claim"))
                and f"nvc-cli doctor {found.checks}\n" in text
            )


def test_the_policies_that_work_without_nvcd() -> None:
    assert f"Ask for the policy {WITHOUT_NVCD}." in BY_CODE["NVC-2107"].remedies


def test_codes_as_people_type_them() -> None:
    assert explain("nvc-1201") is explain(" 1201") is BY_CODE["NVC-1201"]
    for wrong in ("NVC-1", "", "1201x", "\0", "NVC-" + "9" * 9999):
        with pytest.raises(InputError):
            explain(wrong)


def test_the_line_for_people() -> None:
    error = MountError("bind", "/a", "no space left on device", "free some")
    assert error.line() == f"{error} [NVC-1701: nvc-cli doctor host]"
    assert InputError("x").line() == "input error: x [NVC-1001]"


#: Places that raise an error without a hint, of their own or of its class. Some need none. Never more.
WITHOUT_HINT = 214


@functools.cache
def raised() -> list[tuple[str, str, ast.expr | None]]:
    """Places that raise errors of nvc: where, the class, and the hint."""
    known = {one.__name__ for one in classes()}
    found = []
    for name in sources("cli", "hooks", "nvc"):
        for node in ast.walk(tree(name)) if "raise" in read(name) else ():
            call = node.exc if isinstance(node, ast.Raise) else None
            made = call.func if isinstance(call, ast.Call) else None
            made = made.value if isinstance(made, ast.Attribute) and made.attr == "of" else made
            if isinstance(call, ast.Call) and isinstance(made, ast.Name) and made.id in known:
                hints = [*call.args[3:4], *(word.value for word in call.keywords if word.arg == "hint")]
                found.append((f"{name}:{call.lineno}", made.id, next(iter(hints), None)))
    return found


def test_no_hint_is_a_question() -> None:
    texts = [(place, hint.value) for place, _, hint in raised() if isinstance(hint, ast.Constant)]
    assert len(texts) > 100
    assert [place for place, text in texts if str(text).endswith("?")] == []


def test_fewer_errors_leave_a_reader_alone() -> None:
    hinted = {one.__name__ for one in classes() if one.hint}
    without = [place for place, name, hint in raised() if hint is None and name not in hinted]
    assert len(without) <= WITHOUT_HINT, without
