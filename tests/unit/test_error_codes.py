"""Each class of the error tree has a code of its own, and the code is explained."""

from __future__ import annotations

import ast
import errno
import functools
import importlib
import os
import pkgutil
import re

import pytest
from support.prose import read, sources
from support.sources import tree

import nvc
import nvc_cli
import nvc_hooks
from nvc.base.errors import DeviceError, InputError, MountError, NvcError
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


#: The program shows how it is called; what a program in a slice says has its own hint.
ELSEWHERE = ("UsageError", "RunError")
#: In a cause, what is accepted instead, which is what to do.
ACCEPTED = re.compile(r"\bwant(s|ed)?\b|\bat most\b|\bonly with\b|\bnot together with\b")


@functools.cache
def made() -> list[tuple[str, str, ast.Call, ast.expr | None]]:
    """Places that make errors of nvc: where, the class, the call, and the hint."""
    known = {one.__name__ for one in classes()}
    found = []
    for name in sources("cli", "hooks", "nvc"):
        for call in ast.walk(tree(name)) if "Error" in read(name) else ():
            if not isinstance(call, ast.Call):
                continue
            of = isinstance(call.func, ast.Attribute) and call.func.attr == "of"
            kind = ast.unparse(call.func.value if of else call.func).removeprefix("output.")
            if kind in known:
                hints = [*call.args[3:4], *(word.value for word in call.keywords if word.arg == "hint")]
                found.append((f"{name}:{call.lineno}", kind, call, next(iter(hints), None)))
    return found


def test_no_hint_is_a_question() -> None:
    texts = [(place, hint.value) for place, _, _, hint in made() if isinstance(hint, ast.Constant)]
    assert len(texts) > 100
    assert [place for place, text in texts if not text or str(text).endswith("?")] == []
    assert [one.__name__ for one in classes() if one.hint.endswith("?")] == []


def test_every_error_says_what_to_do() -> None:
    """By its place, its class, or what the call that failed says of itself; a wrong value by what is accepted."""
    hinted = {one.__name__ for one in classes() if one.hint}
    silent = [
        place
        for place, kind, call, hint in made()
        if hint is None and kind not in hinted and kind not in ELSEWHERE
        if not (isinstance(call.func, ast.Attribute) and call.func.attr == "of")
        if not ACCEPTED.search(ast.unparse(call))
    ]
    assert len(made()) > 650
    assert silent == []


def test_what_makes_errors_of_a_kind_always_has_a_hint() -> None:
    empty = [
        f"{name}:{node.lineno}"
        for name in sources("cli", "hooks", "nvc")
        for node in ast.walk(tree(name))
        if isinstance(node, ast.FunctionDef) and node.returns and ast.unparse(node.returns).endswith("Error")
        for argument, default in zip(node.args.args[::-1], node.args.defaults[::-1])
        if argument.arg == "hint" and ast.unparse(default) == "''"
    ]
    assert empty == []


def test_a_failed_call_says_what_to_do() -> None:
    """As root cannot write a file system: whatever was tried, where the class does not know better."""
    codes = sorted(errno.errorcode)
    errors = [MountError.of("open", "/x", OSError(code, os.strerror(code))) for code in codes]
    assert all(error.hint for error in errors)
    full = OSError(errno.ENOSPC, "No space left on device")
    gone = OSError(errno.ENOENT, "No such file or directory")
    assert MountError.of("write", "/x", full).hint == DeviceError.of("write", "/x", full).hint
    assert "df" in DeviceError.of("write", "/x", full).hint
    assert DeviceError.of("write", "/x", gone).hint == DeviceError.hint
    assert MountError.of("write", "/x", full, "own").hint == "own"
