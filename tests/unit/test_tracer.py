"""What the tracer's reader makes of its table, of processes, and of what the build made."""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from support import REPO, need, run

from nvc.kernel import objects, tracer, tracing
from nvc.kernel.clocks import process_began
from nvc.kernel.objects import News, Object, living, parse_news, parse_object
from nvc.kernel.tracer import Tracer

sys.path.insert(0, os.path.join(REPO, "native/tracer"))
from build import flatten

CLIENT = Object(7, 0xC1, 0, 0xC1, 0x41, 5, -1, 100)
DEVICE = Object(7, 0xC1, 0xC1, 1, 0x80, 5, 0, 110)
GROUP = Object(7, 0xC1, 1, 2, 0xA06C, 5, -1, 120, 1)
CHANNEL = Object(7, 0xC1, 2, 3, 0xC86F, 5, -1, 130, 1)
TREE = (CLIENT, DEVICE, GROUP, CHANNEL)


@pytest.mark.parametrize("gone", (0, 1, 2, 3))
def test_without_a_parent_its_children_are_over(gone: int) -> None:
    rest = TREE[:gone] + TREE[gone + 1 :]
    assert living(rest, {7: 90}) == TREE[:gone]


def test_objects_of_an_earlier_process_with_the_number_are_over() -> None:
    assert living(TREE, {7: 131}) == ()
    assert living(TREE, {}) == ()


def test_what_is_older_than_its_client_was_in_an_earlier_one() -> None:
    assert living((CLIENT.replace(pid=8, serial=125), *TREE[1:]), {8: 90, 7: 90}) == (
        CLIENT.replace(pid=8, serial=125),
        CHANNEL,
    )


def test_parents_in_a_circle_are_over() -> None:
    assert living((GROUP.replace(parent=2),), {}) == ()


def test_records_are_read() -> None:
    data = struct.pack("<IIIIQIIIiiI", 1, 7, 0xC1, 3, 130, 7, 2, 0xC86F, 5, -1, 1)
    assert parse_news(data) == News(1, 7, 0xC1, 3, CHANNEL)
    assert parse_news(struct.pack("<IIII32x", 5, 7, 1, 2)) == News(5, 7, 1, 2)
    assert parse_news(struct.pack("<IIII12xI16x", 11, 7, 1, 2, 77)) == News(11, 7, 1, 2, slice=77)
    assert parse_object(data[8:16], data[16:]) == CHANNEL
    assert CHANNEL.is_channel and CHANNEL.computes and not CHANNEL.replace(engine=9).computes
    assert not GROUP.is_channel
    for wrong in (data[:-1], data + b"\0", b""):
        with pytest.raises(ValueError):
            parse_news(wrong)
        with pytest.raises(ValueError):
            parse_object(data[8:16], wrong)


@pytest.mark.parametrize(
    ("stat", "began"),
    (
        ("7 (a) b) (S) S 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 3 0 250 0 0", 2_500_000_000),
        ("7 (a) Z 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 2 0 250 0 0", 2_500_000_000),
        ("7 (a) Z 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 250 0 0", None),
        ("7 (a) X 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 0 0 250 0 0", None),
    ),
)
def test_when_a_process_began(tmp_path: Path, stat: str, began: int | None) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text(stat)
    ticks = os.sysconf("SC_CLK_TCK")
    assert process_began(7, str(tmp_path)) == (began and began * 100 // ticks)
    assert process_began(8, str(tmp_path)) is None
    (tmp_path / "7/stat").write_text("7 (a")
    with pytest.raises(OSError, match="cannot be read"):
        process_began(7, str(tmp_path))


def test_when_a_process_began_by_the_hosts_clock(tmp_path: Path) -> None:
    """The kernel adds the offset of the reader's time namespace to what it tells in /proc/PID/stat."""
    (tmp_path / "7").mkdir()
    (tmp_path / "self").mkdir()
    (tmp_path / "7/stat").write_text("7 (a) S 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 3 0 250 0 0")
    (tmp_path / "self/timens_offsets").write_text("monotonic 99 0\nboottime 1 500000000\n")
    assert process_began(7, str(tmp_path)) == 250 * 1_000_000_000 // os.sysconf("SC_CLK_TCK") - 1_500_000_000


def test_missing_rights_are_told(tmp_path: Path) -> None:
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").symlink_to("pid:[4026531836]")

    def missing(*numbers: int) -> str:
        kernel: Any = SimpleNamespace(capget=lambda: (sum(1 << each for each in numbers), 0))
        return " ".join(
            word for text in tracer.missing_rights(kernel, str(tmp_path)) for word in text.split()[:1]
        )

    assert missing(19, 21) == missing(19, 21, 38, 39) == ""
    assert missing(38, 39) == "CAP_SYS_ADMIN CAP_SYS_PTRACE"
    assert missing() == "CAP_BPF CAP_PERFMON CAP_SYS_ADMIN CAP_SYS_PTRACE"


def flat(machine: str) -> bytes:
    return Path(REPO, f"nvc/tracer-{machine}.bin").read_bytes()


@pytest.mark.parametrize("machine", ("x86_64", "aarch64"))
def test_the_build_makes_a_program_for_each_machine(machine: str) -> None:
    made = tracing.parse(flat(machine))
    assert [each.tracepoint for each in made.programs] == [
        "sys_exit",
        "sched_process_fork",
        "sched_process_exit",
    ]
    shapes = {each.name: each for each in made.maps}
    assert shapes["objects"].entries >= 65536
    assert (shapes["objects"].key_size, shapes["objects"].value_size) == (8, 32)
    assert made.license == "GPL"


def test_what_is_cut_or_changed_is_refused() -> None:
    data = flat("x86_64")
    head, _, code = data.partition(b"\n")
    for wrong in (b"", head, head + b"\n", data[:-8], b"[]\n" + code, b"{}\n" + code, b"\n"):
        with pytest.raises(ValueError):
            tracing.parse(wrong)
    document = json.loads(head)
    document["programs"][0]["maps"].append([1 << 20, 0])
    with pytest.raises(ValueError, match="not whole"):
        tracing.parse(json.dumps(document).encode() + b"\n" + code)


def test_what_bpf_cannot_take_is_not_flattened(tmp_path: Path) -> None:
    head = "struct map { unsigned type, a, b, c, d; };\n"
    head += 'struct map m __attribute__((section("maps"), used)) = {1, 4, 4, 1, 0};\n'
    head += 'char terms[] __attribute__((section("license"), used)) = "GPL";\n'
    place = '__attribute__((section("raw_tp/x"), used)) '
    for name, text, why in (
        (
            "two",
            f"{place}int f(void) {{ return 0; }}\n{place}int g(void) {{ return 1; }}\n",
            "only function",
        ),
        ("data", f"int other; {place}int f(void) {{ return other; }}\n", "no map"),
    ):
        source, target = tmp_path / f"{name}.c", tmp_path / f"{name}.o"
        source.write_text(head + text)
        run(need("clang"), "-O2", "-target", "bpf", "-c", "-o", target, source)
        with open(target, "rb") as file, pytest.raises(ValueError, match=why):
            flatten(ELFFile(file))


def test_a_flood_of_news_is_read_a_part_at_a_time() -> None:
    """Of a ring that is never empty."""
    made: Any = Tracer.__new__(Tracer)
    meddled = struct.pack("<IIII32x", objects.MEDDLED, 7, 1, 2)
    freed = struct.pack("<IIII32x", objects.FREED, 8, 3, 4)
    reads = iter([[meddled, freed] * 128] * 1000)
    made._ring, made._leaving = SimpleNamespace(read=lambda: next(reads)), set()
    made._over = set()
    news = made.news()
    assert made.behind and len([*reads]) > 900
    assert len(news) < 10_000 and news[-1] == News(objects.MEDDLED, 7, 1, 2, times=len(news) - 1)
    made._ring = SimpleNamespace(read=lambda: [freed])
    assert made.news() == (News(objects.FREED, 8, 3, 4),) and not made.behind
