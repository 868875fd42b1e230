"""Files that packages and `make install` bring beside the code."""

from __future__ import annotations

import os
import re
import sys
from runpy import run_path

import pytest
from support import CLEAN_ENV, REPO, run

from nvc.base.value import Value
from nvc.request.config import Config, load

#: What is between `](` and `)` outside of code, without what is not a file.
LINK = re.compile(r"\]\((?![a-z]+:)([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$|^ {4}.*?$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
#: A word of a rule of udev: key, operator and value.
RULE = re.compile(r'([A-Z]+(?:\{\w+\})?)(==|=|\+=)"([^"]*)"')
#: Defaults that say "none" (0, not False), for which the file has an example.
NONE = ("", (), 0)


def fields(config: Config) -> dict[str, object]:
    """Its settings, by name."""
    names = [name for name in Config.__annotations__ if name not in ("path", "identity", "warnings")]
    assert isinstance(config, Value)
    return {name: getattr(config, name) for name in names}


def test_the_configuration(scratch: str) -> None:
    """As it is shipped it changes nothing; what it has as comments are the defaults, and every key is known."""
    shipped = os.path.join(REPO, "packaging/config.toml")
    with open(shipped, encoding="utf-8") as file:
        text = file.read()
    for name, content in (("shipped", text), ("all", re.sub(r"^#(?=[a-z])", "", text, flags=re.MULTILINE))):
        with open(f"{scratch}/{name}.toml", "w", encoding="utf-8") as out:
            out.write(content)
    default, loaded = fields(Config()), load(f"{scratch}/shipped.toml", scratch)
    assert fields(loaded) == default and not loaded.warnings
    loaded = load(f"{scratch}/all.toml", scratch)
    assert not loaded.warnings
    other = {name: default[name] for name, value in fields(loaded).items() if value != default[name]}
    assert other and all(value in NONE and value is not False for value in other.values()), other


def test_the_rule_of_udev_starts_a_unit_that_comes_with_it() -> None:
    """When the driver's module is loaded, under the name that Debian gives it too, and for no other module."""
    contents = run_path(os.path.join(REPO, "packaging/share.py"))["contents"]("/usr")
    text = contents["lib/udev/rules.d/99-nvc-cdi-refresh.rules"].decode()
    (rule,) = [line for line in text.splitlines() if not line.startswith("#")]
    words = [RULE.fullmatch(word) for word in rule.split(", ")]
    assert all(words), rule
    said = {word[1]: (word[2], word[3]) for word in words if word}
    assert said["ACTION"] == ("==", "add") and said["SUBSYSTEM"] == ("==", "module")
    assert set(said["KERNEL"][1].split("|")) == {"nvidia", "nvidia_current"} and said["TAG"] == ("+=", "systemd")
    operator, unit = said["ENV{SYSTEMD_WANTS}"]
    assert operator == "+=" and f"lib/systemd/system/{unit}" in contents


def test_the_documentation_of_a_package_is_whole(scratch: str) -> None:
    """Every link of the installed pages leads to a file of the package; `copyright` is added by package.py."""
    script = "import share, sys; share.documents(sys.argv[1])"
    run(sys.executable, "-c", script, scratch, cwd=os.path.join(REPO, "packaging"))
    pages = [
        os.path.join(path, name)
        for path, _, names in os.walk(scratch)
        for name in names
        if name.endswith(".md")
    ]
    assert f"{scratch}/CHANGELOG.md" in pages and f"{scratch}/install.md" in pages
    for page in pages:
        with open(page, encoding="utf-8") as file:
            links = LINK.findall(CODE.sub("", file.read()))
        for link in links:
            target = os.path.normpath(os.path.join(os.path.dirname(page), link.partition("#")[0] or page))
            assert target == f"{scratch}/copyright" or os.path.isfile(target), f"{page}: {link}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--with", "/nowhere/program"), "/nowhere/program: No such file"),
        (("--with", "/etc/passwd"), "ldd /etc/passwd: exit status 1: "),
        ((), "{path}/runc spec: exit status 1: it said nothing"),
    ],
)
def test_first_container_says_what_is_wrong(scratch: str, words: tuple[str, ...], said: str) -> None:
    """In one line: also where the runtime itself fails."""
    environment = dict(CLEAN_ENV)
    if not words:
        os.symlink("/bin/false", f"{scratch}/runc")
        environment["PATH"] = f"{scratch}:{environment['PATH']}"
    program = os.path.join(REPO, "packaging/first-container")
    done = run("/usr/bin/python3", "-I", program, *words, check=False, env=environment)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith(f"first-container: {said.replace('{path}', scratch)}"), done.stderr
    assert done.stderr.count("\n") == 1
    assert not [name for name in os.listdir("/var/lib") if name.startswith("nvc-first-container-")]
