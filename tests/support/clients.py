"""Programs that call nvidia-container-cli or ask Docker for GPUs: Debian's own, on a test's host (engines.py).

packaging/apt-packages.txt has their packages in the role `engines`, docs/clients.md what was tried of them.
"""

from __future__ import annotations

import ast
import glob
import json
import os
import re
import time
from runpy import run_path

from . import REPO
from .engines import CONFIG_TOML, DRIVER, Host
from .sources import tree

TOLD = os.path.join(REPO, "build/clients")
PAGE = os.path.join(REPO, "docs/clients.md")
HEAD = "| client | ran, on | as | what |\n| --- | --- | --- | --- |\n"
#: Of a program, or a revision of its sources.
VERSION = re.compile(r"\b(?:[0-9a-f]{8}|[0-9]+(?:\.[0-9]+)?)")
#: What the driver has in these directories lies over what the host has.
LAY = f"""
for where in dev usr/bin usr/lib; do
    mkdir -p /run/upper/$where /run/work/$where
    over=upperdir=/run/upper/$where,workdir=/run/work/$where
    mount -t overlay -o lowerdir={DRIVER}/$where:/$where,$over overlay /$where
done
mount --bind {DRIVER}/proc/driver /proc/driver
cp -a {DRIVER}/run/. /run
ldconfig
"""


def named(host: Host) -> None:
    """Give the host NVIDIA's names, as packages do."""
    for name, program in run_path(os.path.join(REPO, "packaging/names.py"))["NVIDIAS"].items():
        host.sh(f"ln -s {program} /usr/local/bin/{name}")


def driver_in_place(host: Host) -> None:
    """Put the driver where a host has its own, for clients that take the paths of `list`."""
    host.sh(LAY)
    host.write("/etc/nvc/config.toml", CONFIG_TOML.replace(DRIVER, "/"))


def client_ran(client: str, said: str, who: str, what: str) -> None:
    """Tell docs/clients.md that a client ran: what it prints as its version, as whom, and what of it.

    `make clients` runs all tests that call this, and then writes the page's table.
    """
    found = VERSION.search(said)
    assert found is not None, said
    os.makedirs(TOLD, exist_ok=True)
    line = {"client": client, "version": found[0], "date": time.strftime("%Y-%m-%d", time.gmtime())}
    with open(f"{TOLD}/{client.replace(' ', '-')}-{found[0]}.json", "w", encoding="utf-8") as out:
        json.dump(line, out)


def calls() -> dict[str, list[list[ast.expr]]]:
    """What tests call `client_ran` with, by client."""
    found: dict[str, list[list[ast.expr]]] = {}
    for path in sorted(glob.glob("tests/*/test_*.py", root_dir=REPO)):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "client_ran":
                assigned = [one for one in ast.walk(tree(path)) if isinstance(one, ast.Assign)]
                known = {ast.unparse(one.targets[0]): one.value for one in assigned}
                words = [known.get(ast.unparse(word), word) for word in node.args]
                found.setdefault(ast.literal_eval(words[0]), []).append(words)
    return found


def table(ran: dict[str, dict[str, str]]) -> str:
    """The page's table, of the dates on which versions of clients ran."""
    lines = [HEAD]
    for client, told in sorted(calls().items(), key=lambda item: item[0].lower()):
        dates = sorted(ran.get(client, {}).items(), key=lambda item: numbers(item[0]))
        cells = [client, ", ".join(f"{version} ({date})" for version, date in dates)]
        for place, joint in ((2, ", "), (3, "; ")):
            cells.append(joint.join(dict.fromkeys(ast.literal_eval(words[place]) for words in told)))
        lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)


def numbers(version: str) -> tuple[int, ...]:
    """For comparisons; () for a revision of somebody's sources."""
    return tuple(int(part) for part in version.split(".")) if version.replace(".", "").isdigit() else ()


def generation(version: str) -> str:
    """What versions that replace each other on the page have in common: a first number, or the year of a date."""
    return version.partition(".")[0][:4] if numbers(version) else ""


def page() -> tuple[str, str, str]:
    """The page: before, in and after its table."""
    with open(PAGE, encoding="utf-8") as text:
        before, head, rest = text.read().partition(HEAD)
    after = re.sub(r"\A(\|.*\n)*", "", rest)
    return before, head + rest.removesuffix(after), after


def on_page() -> dict[str, dict[str, str]]:
    """The dates that the page has."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]*) \|", page()[1].removeprefix(HEAD), re.MULTILINE)
    return {client: dict(re.findall(r"(\S+) \(([-0-9]+)\)", cell)) for client, cell in rows}


def main() -> None:
    """Write the page's table of what tests told. It keeps other lines of versions that ran before."""
    ran = on_page()
    for path in sorted(glob.glob(f"{TOLD}/*.json")):
        with open(path, encoding="utf-8") as text:
            line = json.load(text)
        there = ran.setdefault(line["client"], {})
        for version in [one for one in there if generation(one) == generation(line["version"])]:
            del there[version]
        there[line["version"]] = line["date"]
    before, _, after = page()
    made = table(ran)
    with open(PAGE, "w", encoding="utf-8") as out:
        out.write(before + made + after)


if __name__ == "__main__":
    main()
