"""Figures of pages that are constants of the code: each sentence or cell with the code's value is on its page."""

from __future__ import annotations

import errno
import inspect
import os
import re

import pytest
from support.prose import pages, read, reports, sentences

from nvc.apply import executor
from nvc.daemon import stop
from nvc.daemon.audit import verify
from nvc.daemon.keeper import plan
from nvc.daemon.time import meddling
from nvc.kernel import privileges
from nvc.model.slices import layout
from nvc.model.slices.policy import MS, POLICIES, policy_of
from nvc.model.slices.time_settings import WEIGHT_MAX
from nvc.slices.policy import utilization
from nvc.slices.policy.entitlement import FLOOR_US, FRONT_US
from nvc.slices.policy.policies import INSTANCES_MAX
from nvc.slices.store.admission import MPS_CLIENTS

SECOND = 1000 * MS
MIB = 1 << 20
EQUAL_MS, SOFT = plan.TURN / MS, POLICIES.index("soft")

IN_THE_WAY = executor._HINTS[errno.EEXIST].partition(";")[0]

FIGURES = (
    ("docs/daemon.md", f"by more than {verify.TOLERANCE / MIB:g} MiB, or 1 % where that is more"),
    ("docs/daemon.md", f"whose ledger `nvcd` cannot read for {verify.UNREAD / SECOND:g} s."),
    ("docs/daemon.md", f"for {verify.PERSIST[verify.OVERCOUNT] / SECOND:g} s. `nvcd` removes it"),
    *((f"docs/{page}.md", f"use {stop.BY_SYSTEMD}") for page in ("daemon", "sharing")),
    ("docs/security.md", f"by more than {verify.TOLERANCE / MIB:g} MiB (or 1 %, if that is more), `nvcd`"),
    ("docs/security.md", f"had the GPU for {meddling.BROKE / MS:g} ms although it was stopped"),
    ("docs/sharing.md", f"{EQUAL_MS:g} ms, under `soft` {EQUAL_MS * policy_of(SOFT).quanta:g} ms"),
    ("docs/sharing.md", f"1 to {plan.LONGEST_US / 1000:g} ms, or less if one weight"),
    ("docs/time.md", f"its percentage of {plan.ROUND / MS:g} ms, or of {2 * plan.ROUND / MS:g} ms"),
    ("docs/sharing.md", f"a period of {plan.PERIOD / MS:g} ms, the default, is then {plan.TURNS / MS:g} ms"),
    ("docs/sharing.md", f"divide {FRONT_US / 1000:g} ms, and each other slice gets {FLOOR_US / 1000:g} ms"),
    ("docs/concurrent.md", f"- {MPS_CLIENTS} slices share the server,"),
    ("docs/vgpu.md", f"never uses more than {layout.LEDGER_SIZE / MIB:.1f} MiB of the host's memory"),
    ("docs/vgpu.md", f"a whole number from 1 to {WEIGHT_MAX}"),
    ("docs/vgpu.md", f"/nvc: {os.strerror(errno.EEXIST).lower()}; {IN_THE_WAY}`**"),
    ("tests/features.md", f"`--max-instances`, 1 to {INSTANCES_MAX}"),
)  # fmt: skip


@pytest.mark.parametrize(("page", "text"), FIGURES)
def test_the_page_has_the_codes_figure(page: str, text: str) -> None:
    assert text in " ".join(read(page).split()), f"{page} says another figure than the code: want {text!r}"


def test_the_page_says_whose_choice_it_is_that_nvcd_starts() -> None:
    script = read("packaging/scripts/postinstall")
    assert "systemctl --quiet preset" in script and "systemctl enable" not in script
    (said,) = re.findall(r"^The packages .*?Without systemd", read("docs/daemon.md"), re.MULTILINE | re.DOTALL)
    assert "presets" in said and "enabled:" in said


def test_every_state_of_a_slice_is_explained() -> None:
    states = re.findall(r'"(.+?)"', " ".join(re.findall(r"return (.*)", inspect.getsource(utilization.state))))
    table = read("docs/sharing.md").partition("| `STATE` | meaning |")[2].partition("\n\n")[0]
    assert {"gone", "hidden", "?", "-"} < set(states)
    assert [state for state in states if f"`{state}`" not in table] == []


def test_the_page_names_each_right_that_the_chart_takes() -> None:
    """Capabilities, directories of the host and containers, in the table of rights on Kubernetes."""
    table = read("docs/security.md").partition("On Kubernetes the chart's pods have these rights")[2]
    table = table.partition("\n## ")[0]
    chart = "packaging/kubernetes/chart/templates/"
    helpers, daemonset = read(f"{chart}_helpers.tpl"), read(f"{chart}daemonset.yaml") + read(f"{chart}nri.yaml")
    given = re.findall(r'define "nvc\.(?:nvcd\.)?capabilities" -\}\}\n(.*)', helpers)
    taken = {name for line in given for name in re.findall(r"\b[A-Z_]{3,}\b", line)}
    assert {"KILL", "BPF"} < taken
    taken |= set(re.findall(r"hostPath: \{path: (/[\w/.-]+)", daemonset)) - {"/usr/lib"}  # of `uninstall`
    taken |= set(re.findall(r"- name: ([a-z]+)\n +image:", daemonset)) | {"hostPID", "pod-resources", "runtimeDir"}
    assert {name for name in taken if f"`{name}`" not in table} == set()


def test_the_page_names_each_right_that_nvcd_keeps() -> None:
    """At its start too, where systemd's unit bounds them."""
    rows = re.findall(r"^\| `nvcd`(?:, at its start)? \| (.*?) \|", read("docs/security.md"), re.MULTILINE)
    begins, keeps = (set(re.findall(r"`(.*?)`", row)) for row in rows)
    unit = re.findall(r"^CapabilityBoundingSet=(.*)", read("packaging/systemd/nvcd.service"), re.MULTILINE)
    bits = {name: 1 << bit for name, bit in vars(privileges).items() if name.isupper() and type(bit) is int}
    kept = {f"CAP_{name}" for name, bit in bits.items() if bit & privileges.PERMITTED["nvcd"]}
    assert kept == keeps and begins == set(" ".join(unit).split()) - kept


def test_what_a_page_says_of_flaws_is_in_the_table() -> None:
    """Rules that are named beside a published flaw exist."""
    text = read("tests/security.md")
    rules = re.findall(r"^\| (\d+) \|", text.partition("## Rules and their tests")[2], re.MULTILINE)
    flaws = text.partition("## Flaws of other toolkits")[2]
    assert set(re.findall(r"\brule (\d+)\b", flaws)) <= set(rules)


def test_pages_say_how_often_nvcd_asks_nvml() -> None:
    (part,) = re.findall(r"loop\.every\(SECOND // (\d), daemon\.half\)", read("nvc/daemon/main.py"))
    assert part == "2" and "Twice a second, `nvcd` asks NVML" in read("docs/daemon.md")


#: What pages said once, and the code or another page did not.
WRONG = (
    r"once a second[^.]{0,60}NVML|NVML once a second",
    r"(neither|nor) (images|users)[^.]{0,60}can (create|make) such mounts",  # a user may: `--volume /dev/null:...`
    r"requireNvcd",  # keys of the chart are those of config.toml
    r"copies and fills are not capped",  # where nvcd keeps time they are
    r"packages enable (`?nvcd|it)",  # systemd's presets decide
    r"`native`[^.]{0,40}costs nothing|runs everywhere",
    r"Podman (supports CDI )?since 3\.2",  # that read a draft of CDI
    r"each (rule )?prevents a class",  # some rules have no published flaw
    r"errors name the step, the path, the cause and what to do",  # not each has a hint
    r"ends within 2 ms",
    r"drop-in replacement",  # docs/differences.md has what differs
    r"about (four|4) minutes|about (ten|10) seconds",  # of which machine?
)


@pytest.mark.parametrize("claim", WRONG)
def test_no_page_says_again_what_was_wrong(claim: str) -> None:
    wrong = re.compile(claim, re.IGNORECASE)
    texts = (*pages(), *reports(), "tests/features.md", "packaging/kubernetes/chart/values.yaml")
    assert [page for page in texts if wrong.search(" ".join(read(page).split()))] == []


def numbers(text: str) -> set[str]:
    """Figures of a text, without dates, versions, names and the marks that group digits."""
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|\d{4}-\d\d-\d\d|\d+\.\d+\.\d+", " ", text, flags=re.MULTILINE)
    text = re.sub(r"(?<=\d)[,\u202f ](?=\d{3}\b)", "", text)
    return set(re.findall(r"(?<![\w.:])\d+(?:\.\d+)?(?![\w.]*\w)", text))


def counted(part: str) -> set[str]:
    """Figures that are numbers of rows of a report: programs of which each held its memory limit."""
    rows = re.findall(r"^\| .* \| \d+ \| \d+ \|$", read("docs/measurements/reports/2026-11-24-adversary.md"), re.M)
    return {str(len(rows))} if part.startswith("Hostile programs") else set()


def parts() -> list[str]:
    """The sections of the page of measurements."""
    return re.split(r"^## ", read("docs/measurements/README.md"), flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("part", parts(), ids=lambda part: part.splitlines()[0])
def test_measured_figures_are_those_of_the_reports(part: str) -> None:
    """Each figure of a section is in a report that the section links to."""
    linked = re.findall(r"\((reports/[^)#]+)", part)
    assert linked
    there = set().union(*(numbers(read(f"docs/measurements/{name}")) for name in linked))
    assert numbers(part) - there == counted(part)


def test_figures_of_weight_and_first_are_those_of_the_reports() -> None:
    _, _, table = read("docs/choose-policy.md").partition("### Weight and first")
    known = ("2026-11-24-time-h100", "2026-11-27-time-h200", "2026-11-27-two-gpus")
    there = set().union(*(numbers(read(f"docs/measurements/reports/{name}.md")) for name in known))
    shown = {number for number in numbers(table) if "." in number}
    assert len(shown) > 8 and shown <= there


@pytest.mark.parametrize("page", [page for page in pages() if "measurements/README.md" in read(page)])
def test_figures_beside_a_link_are_measured(page: str) -> None:
    """What a sentence says and links to the measurements for is on that page."""
    measured = numbers(read("docs/measurements/README.md"))
    for sentence in (one for block in re.split(r"\n\s*\n|\n[-|]", read(page)) for one in sentences(block)):
        if "measurements/README.md" in sentence:
            assert numbers(sentence) - measured == set(), sentence
