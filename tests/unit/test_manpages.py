"""Man pages and completion scripts come from the tables of parser and help, and typeset without a complaint."""

from __future__ import annotations

import os
import sys

import pytest
from support import REPO, need, run

from nvc.model.slices.policy import CHOICES
from nvc_cli.main import LAZY
from nvc_cli.options import GLOBAL, HOT

SCRIPT = os.path.join(REPO, "packaging/manpages.py")
PROGRAMS = ("nvcd", "nvc-kubelet-plugin", "nvc-nri", "nvc-runtime", "nvc-hook", "nvc-cdi-hook", "first-container")
PATH = os.path.join(REPO, "build/stage/lib/nvc/python")


@pytest.fixture(scope="module")
def made(stage: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = str(tmp_path_factory.mktemp("pages"))
    run(sys.executable, SCRIPT, directory, PATH)
    return directory


def typeset(path: str) -> str:
    """The page as a terminal shows it, not folded; a warning is a failure."""
    done = run(
        need("groff"),
        "-man",
        "-ww",
        "-Tutf8",
        "-rLL=1000n",
        "-P-cbou",
        path,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    assert done.stderr == "", path
    return str(done.stdout)


def test_a_page_for_every_command(made: str) -> None:
    wanted = {f"nvc-cli-{name}.1" for name in (*HOT, *LAZY) if name != "help"}
    wanted |= {"nvc-cli.1", "nvc-spin.1", "nvidia-ctk.1", *(f"{name}.8" for name in PROGRAMS)}
    assert set(os.listdir(f"{made}/man")) == wanted
    for name in os.listdir(f"{made}/man"):
        text = typeset(f"{made}/man/{name}")
        assert f"{name[:-2]} - " in text and "SYNOPSIS" in text and "DESCRIPTION" in text


def test_every_option_is_there(made: str) -> None:
    pages = {"nvc-cli": GLOBAL, **{f"nvc-cli-{name}": entry[0] for name, entry in HOT.items()}}
    for page, options in pages.items():
        text = " ".join(typeset(f"{made}/man/{page}.1").split())
        for name, letter, _, _, help_text in options:
            shown = "".join(f"-{one}, " for one in letter if name != "help")
            assert f"{shown}--{name}" in text, (page, name)
            help_text = help_text.replace("{policies}", CHOICES)
            assert name == "help" or " ".join(help_text.split()) in text, (page, name)


@pytest.mark.parametrize(
    ("shell", "name"), [("bash", "nvc-cli"), ("zsh", "_nvc-cli"), ("fish", "nvc-cli.fish")]
)
def test_completion_scripts(made: str, launcher: str, shell: str, name: str) -> None:
    with open(f"{made}/completions/{shell}/{name}", encoding="utf-8") as script:
        assert script.read() == run(launcher, "completion", shell).stdout


def test_exit_codes_are_those_of_the_documentation(made: str) -> None:
    with open(os.path.join(REPO, "docs/cli.md"), encoding="utf-8") as file:
        rows = file.read().split("| exit code | |\n| --- | --- |\n")[1].split("\n\n")[0].splitlines()
    documented = [row.split("|")[1].strip() for row in rows]
    shown = typeset(f"{made}/man/nvc-cli.1").split("EXIT STATUS")[1].split("FILES")[0]
    assert documented == ["0", "1", "70", "130, 141"]
    assert [code for code in documented if f"\n       {code}" not in shown] == []
