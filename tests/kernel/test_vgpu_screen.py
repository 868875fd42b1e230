"""The interactive `nvc-cli vgpu top`: keys, sizes, colours, and a terminal that is given back as it was."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from collections.abc import Callable, Iterator

import pytest
from support import CLEAN_ENV, REPO, run
from support.picture import drawing
from support.programs import Programs
from support.terminal import PROMPT, Terminal
from support.vgpu import cli

pytestmark = pytest.mark.usefixtures("shim")
COLOUR = re.compile(r"\x1b\[(?:[0-9]+;)*3[0-7]m")


class Named(Programs):
    """Programs whose slices are called tenant-0, tenant-1 and so on."""

    def add(self, *words: str) -> str:
        """The name of a new one's slice."""
        name = f"tenant-{len(self.processes)}"
        self.start(f"--name={name}", *words)
        return name


@pytest.fixture
def programs(launcher: str, sim_root: Callable[..., str]) -> Iterator[Named]:
    found = Named(launcher, sim_root())
    yield found
    found.end()


def rows(lines: list[str], *names: str) -> list[str]:
    """Which of these slices are shown, in their order."""
    return [word for word in (line.split(" ")[0] for line in lines) if word in names]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (50, 10), (160, 50)])
def test_it_fits_terminals_of_any_size(
    launcher: str, programs: Named, scratch: str, width: int, height: int
) -> None:
    name = programs.add("--memory=4g", "--cores=40")
    with Terminal(scratch, width, height) as terminal:
        terminal.type(f"'{launcher}' vgpu top --interval 0.1")
        lines = terminal.wait_for(name, "GPU 0", "q quit")
        assert lines[0].startswith("nvc-cli vgpu top") and lines[-1].startswith("q quit")
        assert len(lines) == height and max(map(len, lines)) <= width
        row = next(line for line in lines if line.startswith(name))
        assert "0M/4.0G" in row and row.split()[1] == "0" and " idle" in row
        assert ("40%" in row) == (width == 160) and (" program" in row) == (width == 160)
        terminal.resize(width + 21, height + 3)
        lines = terminal.wait_until(
            lambda lines: len(lines) == height + 3 and lines[-1].startswith("q quit")
        )
        assert any(line.startswith(name) for line in lines) and len(lines[0]) > width
        terminal.press("q")
        terminal.wait_until(lambda lines: lines[-1:] == [PROMPT])


@pytest.mark.parametrize("key", ["q", "Escape", "C-c"])
def test_keys_that_leave(launcher: str, scratch: str, key: str) -> None:
    """With the terminal as it was before: its settings, its screen and its cursor."""
    with Terminal(scratch, 160) as terminal:
        terminal.type(f"stty -g; '{launcher}' vgpu top; echo code $?; stty -g")
        terminal.wait_for("There are no slices.", "q quit")
        assert not terminal.is_restored()
        terminal.press(key)
        lines = terminal.wait_until(lambda lines: lines[-1:] == [PROMPT] and "code 0" in lines)
        assert lines[-4] == lines[-2] and lines[-3] == "code 0" and terminal.is_restored()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_that_ends_it(launcher: str, scratch: str, number: int, code: int) -> None:
    """Whoever waits for it is told the signal, and the terminal is as before."""
    with Terminal(scratch, 160) as terminal:
        terminal.type(f"'{launcher}' vgpu top & stty -g; fg >/dev/null; echo code $?; stty -g")
        terminal.wait_for("q quit")
        shell = terminal.tmux("display-message", "-p", "#{pane_pid}").strip()
        (pid,) = run("pgrep", "-P", shell, "-f", "vgpu top").stdout.split()
        os.kill(int(pid), number)
        lines = terminal.wait_until(lambda lines: lines[-1:] == [PROMPT] and f"code {code}" in lines)
        place = lines.index(f"code {code}")
        assert lines[place + 1] in lines[:place] and terminal.is_restored()


def test_it_is_stopped_and_goes_on(launcher: str, programs: Named, scratch: str) -> None:
    """The shell has the terminal meanwhile, which may become another size."""
    name = programs.add("--memory=4g")
    with Terminal(scratch) as terminal:
        terminal.type(f"stty -g; '{launcher}' vgpu top --interval 0.1")
        terminal.wait_for(name, "q quit")
        terminal.press("C-z")
        terminal.wait_until(lambda lines: lines[-1:] == [PROMPT])
        assert terminal.is_restored()
        terminal.type("clear; echo $((4000 * 1000 + 2))")
        terminal.wait_until(lambda lines: lines == ["4000002", PROMPT])
        terminal.resize(100, 30)
        terminal.type("fg")
        lines = terminal.wait_until(lambda lines: len(lines) == 30 and lines[-1].startswith("q quit"))
        assert rows(lines, name) == [name] and not any("4000002" in line for line in lines)
        terminal.press("q")
        terminal.wait_until(lambda lines: lines[-1:] == [PROMPT])


def test_orders_and_slices_that_are_gone(launcher: str, programs: Named, scratch: str) -> None:
    first, gone, last = (programs.add(f"--memory={size}g", f"--cores={size}") for size in (4, 8, 2))
    programs.kill(1)
    names = first, gone, last
    with Terminal(scratch) as terminal:
        terminal.type(f"'{launcher}' vgpu top --interval 0.1")
        lines = terminal.wait_for(last, "2 running, 1 gone")
        assert rows(lines, *names) == [first, last]
        for key, order in (
            ("a", [first, last, gone]),
            ("r", [last, first, gone]),
            ("r", [first, last, gone]),
            ("a", [first, last]),
        ):
            terminal.press(key)
            terminal.wait_until(lambda lines, order=order: rows(lines, *names) == order)  # type: ignore[misc]
        terminal.press("n")
        terminal.wait_for("sorted by name")
        terminal.press("?")
        lines = terminal.wait_for("Esc Ctrl-C", "order by memory in use", "no cap, no nvcd, or native")
        assert rows(lines, *names) == []
        terminal.press("Down")
        assert rows(terminal.wait_for("sorted by name", first), *names) == sorted([first, last])
    with Terminal(scratch) as terminal:
        terminal.type(f"'{launcher}' vgpu top --all --interval 0.1")
        assert rows(terminal.wait_for(gone), *names) == [first, last, gone]


def test_colours_are_for_those_who_want_them(launcher: str, programs: Named, scratch: str) -> None:
    name = programs.add("--memory=4g", "--cores=40")
    cli(launcher, "pause", name)
    for variables, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        with Terminal(scratch, **variables) as terminal:
            terminal.type(f"'{launcher}' vgpu top")
            terminal.wait_for(name, "paused")
            assert bool(COLOUR.search("\n".join(terminal.shown("-e")))) == coloured
    with Terminal(scratch, TERM="dumb") as terminal:
        terminal.type(f"'{launcher}' vgpu top -n 1")
        lines = terminal.wait_until(lambda lines: lines[-1:] == [PROMPT] and name in "\n".join(lines))
        assert any(line.startswith("SLICE  ") for line in lines) and terminal.is_restored()


@pytest.mark.parametrize(
    ("variables", "blocks"),
    [({"LC_ALL": "C.UTF-8"}, True), ({"LC_ALL": "C"}, False), ({"TERM": "no-such-terminal"}, True)],
)
def test_characters_that_the_terminal_has(
    launcher: str, programs: Named, scratch: str, variables: dict[str, str], blocks: bool
) -> None:
    """A terminal that this host's terminfo does not know is drawn on like any other."""
    name = programs.add("--memory=4g", "--cores=40")
    with Terminal(scratch, **variables) as terminal:
        terminal.type(f"'{launcher}' vgpu top")
        text = "\n".join(terminal.wait_for(name, "q quit"))
        assert ("│" in text, "|" in text) == (blocks, not blocks)


def test_a_policy_that_nobody_enforces(launcher: str, programs: Named, scratch: str) -> None:
    """Without nvcd, weights have no effect; who looks is told, on a terminal and elsewhere."""
    name = programs.add("--memory=4g", "--weight=3")
    assert "weight (not enforced: nvcd is not running)" in cli(launcher, "top", "--once").stdout
    with Terminal(scratch) as terminal:
        terminal.type(f"{shlex.quote(launcher)} vgpu top")
        terminal.wait_for(name, "weight (not enforced: nvcd is not running)", "q quit")


def test_tables_where_there_is_no_terminal(launcher: str, programs: Named) -> None:
    alive, gone = (programs.add("--memory=4g", "--cores=40") for _ in range(2))
    programs.kill(1)
    shown = cli(launcher, "top", "-n", "2", "--interval=0.1").stdout
    assert shown.count("nvc-cli vgpu top, ") == 2 == shown.count("1 running of 2 slices")
    assert "\x1b" not in shown and alive in shown and gone not in shown
    shown = cli(launcher, "top", "--once", "--all").stdout
    assert rows(shown.splitlines(), alive, gone) == [alive, gone]
    lines = cli(launcher, "top", "-n", "2", "--interval=0.1", "--format=json").stdout.splitlines()
    found = [json.loads(line) for line in lines]
    assert [[one["name"] for one in picture["slices"]] for picture in found] == [[alive], [alive]]
    (device,) = found[1]["slices"][0]["devices"]
    assert (device["state"], device["entitlement"], device["utilization"]) == ("idle", 0.4, None)
    assert found[0]["time"] < found[1]["time"]


@pytest.mark.nightly
def test_somebody_who_is_new_sees_two_tenants(stage: str, scratch: str) -> None:
    """docs/sharing.md, typed as it is written: two programs that get a GPU's time by their caps."""
    with open(os.path.join(REPO, "docs/sharing.md"), encoding="utf-8") as page:
        section = page.read().split("## See it\n")[1].split("\n## ")[0]
    begin, after = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    alone = "mkdir -p /run/nvc && mount -t tmpfs -o mode=700 tmpfs /run/nvc"
    path = f"{stage}/bin:{CLEAN_ENV['PATH']}"
    with Terminal(scratch, 80, 50, PATH=path) as terminal:
        terminal.type("exec unshare --mount bash --norc --noediting")
        # What the README leaves in a shell: a nvcd for another driver root, and jobs that do not end.
        earlier = (
            "nvc-cli sim create /srv/driver",
            "nvcd --root /srv/driver 2>/tmp/earlier.log & sleep 300 &",
            next(line for line in begin.splitlines() if line.startswith("until nvcd ")),
        )
        for line in (alone, *earlier, *begin.splitlines()):
            terminal.type(re.sub("/(srv|tmp)/", f"{scratch}/", line))

        def shares(lines: list[str]) -> list[float]:
            found = [re.search(r"/([48])\.0G .* (\d+\.\d)%", line) for line in lines]
            return [float(match[2]) for match in sorted(filter(None, found), key=lambda match: match[1])]

        terminal.wait_until(
            lambda lines: len(shares(lines)) == 2 and 2 < shares(lines)[1] / max(shares(lines)[0], 1) < 4
        )
        if picture := os.environ.get("NVC_PICTURE"):  # of the first page: CONTRIBUTING.md
            terminal.wait_until(lambda lines: any(re.match("heavy .*% +[▁-█]{6} *capped", line) for line in lines))
            shown = [line for line in terminal.shown("-e") if line.strip() and "not shown:" not in line]
            with open(picture, "w", encoding="utf-8") as out:
                out.write(drawing(shown))
        terminal.press("q")
        terminal.wait_until(lambda lines: lines[-1:] == [PROMPT])
        for line in (*after.splitlines(), "echo $((40 + 2))"):
            terminal.type(re.sub("/(srv|tmp)/", f"{scratch}/", line))
        lines = terminal.wait_until(
            lambda lines: "".join(lines[-2:-1]).endswith("42") and lines[-1] == PROMPT
        )
        assert sum(" steps in " in line for line in lines) == 2, lines
        assert not os.path.exists(f"{scratch}/try")
