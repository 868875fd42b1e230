"""How nvc speaks: short sentences, the words of the glossary, none of the habits that make a reader start again."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

import pytest
from support.prose import (
    CODE,
    blocks,
    helps,
    messages,
    pages,
    plain,
    read,
    reports,
    sentences,
    sources,
    words,
)
from support.sources import sources as files

from nvc_cli import ctk, daemon
from nvc_cli.main import tree
from nvc_hooks import boot as hook_boot
from nvc_hooks import cdi as hook_cdi

LONGEST = 30  # words of a sentence

#: A habit to lose, as a pattern, and a sentence that has it.
LOST = (
    (r"\bstands? where\b", "It stands where nvidia-container-cli and its prestart hook stand"),
    (r"\bNothing to \w+\.", "Nothing to race. Every mount goes from one file descriptor to another"),
    (r"\b[Nn]othing of (?!\d)|\bbelieved\b(?!,)", "Nothing of the image is run, read as code or believed"),
    (r"\bfiles of one\b", "`/run/rootfs` a directory with the files of one"),
    (r"\b[Tt](?:ak(?:e|es|ing|en)|ook) (?!nothing)(?:\w+ ){0,4}back\b", "Take registrations back first"),
    (r"\b(?:is|are) yours\b", "the specification of CDI that you have written is yours"),
    (r"\bstarts work\b", "Until then starts work, but take several times as long"),
    (r"\bis said by\b", "What is given beside the GPUs is said by NVIDIA_DRIVER_CAPABILITIES"),
    (r"\ball else\b|\bto the last\b", "all else in it stays as it was, to the last blank"),
    (r"\b[Ww]hoever\b", "the environment must be there, or the hook would get that of whoever called"),
    (r"\bare all \w+ed\b", "An engine that leaves hooks out gives a container whose allocations are all denied"),
    (r"(?:^|[.;:] )Of (?:\w+ )", "Of one GPU a container can have one size"),
    (r"\b(?:for|to|of|by|with|from|than|lets?) who\b", "have no memory for who uses them anyway"),
    (r"\bcomes last\b", "the driver says out of memory to whoever comes last"),
    (r"\b(?:by|at) what (?!the )", "proves by what processes have mapped that the shim is active"),
    (r"\bas there may be\b|\bleaves is left\b", "one of as many as there may be; time that one leaves is left"),
    (r"(?:^|[.;:,] )[Ww]ho (?!is |are |else)(?![^.]*\?)", "Who names no policy has `fixed` with a cap"),
    (r"\b(?:laid|lays?|laying) (?:\w+ )?down\b", "What is laid down wins over what slices ask for"),
    (r"\bwhat (?:they|it|one|he) may\b", "holds what slices take against what they may"),
    (r"\b[Nn]othing (?:is|was) \w+ (?:\w+ )*but\b", "Nothing is done about what it finds but to report it"),
    (r"\bcannot be told\b|\bknown to fail\b", "2 where nothing is known to fail and something cannot be told"),
    (r": nothing wrong\b|\bwhat is well\b", "whether this is a Tegra system: nothing wrong"),
    (r"\b[Aa]nother \w+ than\b|\bthat holds\.", "Another file than the one that holds."),
    (r"\bfor so long\b", "Try again for so long while the driver is not ready."),
    (r"\bmay come to\b", "What all weights may come to; 0: anything."),
    (r"\b(?:is|are|has|have|makes?) none\b(?! of)", "under the policy native no cap is kept, and a slice has none"),
    (r"(?:^|[.;] )(?:The same|As|That|So) (?:for|of|with) (?:a|an|the|each)\b", "The same for a container"),
    (r"\bof (?:those|them) that\b", "of those that are there the first is taken"),
    (r"\bwithout a word\b|\bin silence\b|\bon Monday\b", "as fast on Monday as on Sunday"),
    (r"\ball the same\b|(?<!asks )(?<!asked )(?<!ask )\bfor nothing\b", "it is removed all the same"),
    (r"\bthere are none of\b", "there are none of parts"),
    (r"\bis (?:not )?looked at\b|\blooked into by\b", "What comes after `all` is not looked at"),
)  # fmt: skip

#: A word that the glossary replaced, and the term.
REPLACED = (
    (r"\bfenc(?:e|es|ed|ing)\b", "isolation"),
    (r"\b(?:a|the|its|their|each|no|of) turns?\b(?! (?:on|off|out))|\b(?:in|takes?|by) turns\b", "lease"),
    (r"\bbooks\b", "ledger"),
    (r"\bgoverned\b", "device policy"),
    (r"\b(?:a|the|its|their|each|least|mean|greatest|of) shares?\b", "entitlement or utilization"),
    (r"\butilisation\b", "utilization"),
    (r"\bdriver features\b(?!;)", "driver capabilities"),
)  # fmt: skip

ANY = re.compile("|".join(pattern for pattern, _ in (*LOST, *REPLACED)))

#: Abbreviations that an engineer who runs containers knows.
COMMON = frozenset(
    """
    ABI AND API BPF CHANGELOG CLI CPU CSV CUDA CVE DMA DRA DRI DRM EGL ELF GNU GPL GPU HTTP ID IO IP IPC JSON
    LGPL LLVM LXC LXD MAC MIT MPL NVIDIA NVRTC OCI OR PATH PC PCI PID POSIX PSF PTX RHEL SCC SONAME SVG TCP TOML UID
    UTC UUID UVM VM WSL YAML
    A10 A100 GB GB10 H100 H200 JAX KAI L4 L40S NCCL RTX T4 MB README SIGINT SIGIO SIGKILL SIGTERM SIGUSR1 SSH
    CAPABILITIES CONTAINER DEV KINDS OTHER PREFIX ROOTFS SECURITY
    """.split()
)  # fmt: skip


@functools.cache
def prose(page: str) -> tuple[str, ...]:
    """The sentences of a page."""
    return tuple(sentence for block in blocks(read(page)) for sentence in sentences(block))


@functools.cache
def bare(page: str) -> tuple[str, ...]:
    """The same without code."""
    return tuple(CODE.sub("code", sentence) for sentence in prose(page))


def help_texts() -> Iterator[tuple[str, str]]:
    """Every help text of nvc-cli and nvidia-ctk, and the usage of other programs."""
    yield from helps(tree)
    yield from helps(ctk.tree)
    for usage in (daemon.USAGE, hook_boot.USAGE, hook_cdi.USAGE):
        yield from ((usage.split()[1], plain(text)) for text in usage.split("\n\n")[1:] if text[0] != " ")


def glossary() -> dict[str, str]:
    """The terms and their meanings."""
    text = read("docs/glossary.md")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    return {term: meaning for term, meaning in rows if term not in ("term", "---")}


def habits(text: str) -> list[str]:
    """What a text has that it should not have."""
    bare = CODE.sub("code", text)
    if not ANY.search(bare):
        return []
    found = [match[0] for pattern, _ in LOST if (match := re.search(pattern, bare))]
    return found + [
        f"{match[0]}: say {term}" for pattern, term in REPLACED if (match := re.search(pattern, bare))
    ]


def test_a_lost_habit_is_found() -> None:
    for pattern, example in LOST:
        assert re.search(pattern, example), pattern


def test_sentences_of_a_page_are_short() -> None:
    for page in pages():
        long = {sentence: words(sentence) for sentence in prose(page) if words(sentence) > LONGEST}
        assert long == {}, page


def test_a_page_has_no_lost_habit() -> None:
    for page in pages():
        found = {sentence: kinds for sentence in prose(page) if (kinds := habits(sentence))}
        assert found == {}, page


def test_help_is_short_and_plain() -> None:
    found = {}
    for place, text in help_texts():
        for sentence in sentences(text):
            if words(sentence) > LONGEST or habits(sentence):
                found[place] = (sentence, words(sentence), habits(sentence))
    assert found == {}


def test_messages_have_no_lost_habit() -> None:
    found = {
        place: (text, kinds) for place, text in messages("cli", "hooks", "nvc") if (kinds := habits(text))
    }
    assert found == {}


def test_every_abbreviation_is_common_or_in_the_glossary() -> None:
    for page in pages():
        text = " ".join(CODE.sub(" ", block) for block in blocks(read(page)))
        found = set(re.findall(r"(?<![\w-])([A-Z][A-Z0-9]+)s?(?![\w-])", text))
        assert found - COMMON - set(glossary()) == set(), page


def test_the_glossary_is_used() -> None:
    """Each term on another page, and those of nvc's own in the code."""
    others = " ".join(" ".join(prose(page)) for page in pages() if page != "docs/glossary.md").lower()
    shim = [name for name in files(".c", ".h") if name.startswith("native/vgpu/")]
    code = " ".join(read(path) for path in (*sources("cli", "nvc"), *shim)).lower()
    terms = list(glossary())
    own = terms[: terms.index("bundle")]
    assert len(terms) == len(set(terms)) and len(terms) >= 20
    assert [term for term in terms if term.lower().removesuffix("y") not in others] == []
    assert [term for term in own if term not in code] == []


#: Habits that make a reader start again, how often pages have each, and reports of measurements. Less, never more.
COUNTED = {
    "a verb that says nothing": (r"\b(?:has|have|had) \d", 0, 4),
    "a clause with what": (r"\b[Ww]hat (?!is\b.*\?)", 250, 20),
    "beside": (r"\bbesides?\b", 32, 16),
    "money": (r"\b(?:pays?|owe[sd]?|credits?|debts?|books)\b", 3, 4),
    "software that speaks": (r"\b(?:says?|said|tells?|told|asks?|asked|answers?|lies|knows?)\b", 260, 20),
    "the other one": (r"\b(?:that|other|last|next|first|second) ones?\b", 30, 4),
    "alone for only": (r"\balone\b", 20, 38),
    "persons for processes": (r"\b(?:some|no|every)body\b", 38, 6),
    "a text that knows its date": (r"\b(?:[Nn]ow|since then|[Bb]efore that|earlier build)\b", 12, 10),
    "words of old books": (r"\b(?:[Mm]eanwhile|at once|goes on|mends?|mended)\b", 14, 12),
}  # fmt: skip
#: Beginnings that lean on the sentence above; three in a row are a chain.
LEANING = re.compile(r"(?:It|They|This|These|So)\b")


def often(pattern: str, names: list[str]) -> int:
    """How often prose of pages has a habit."""
    return sum(len(re.findall(pattern, one)) for name in names for one in bare(name))


@pytest.mark.parametrize("habit", COUNTED)
def test_a_habit_becomes_rarer(habit: str) -> None:
    pattern, most, most_in_reports = COUNTED[habit]
    assert (often(pattern, pages()) <= most, often(pattern, reports()) <= most_in_reports) == (True, True)


def test_sentences_do_not_lean_on_each_other() -> None:
    """Short sentences are no stumps: no three in a row begin with a pronoun or So."""
    chains = []
    for page in pages():
        for block in blocks(read(page)):
            begun = [bool(LEANING.match(one)) for one in sentences(block)]
            chains += [f"{page}: {block[:60]}" for run in zip(begun, begun[1:], begun[2:]) if all(run)]
    assert chains == []
