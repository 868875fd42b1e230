"""The files of the shims, as a loader and an old system see them."""

from __future__ import annotations

import functools
import io
import os
import re

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import NoteSection, SymbolTableSection
from support.sources import read
from support.vgpushim import build

from nvc.model.slices.layout import VERSION

BASELINE = (2, 17)
LIBRARIES = ("libcuda.so", "libnvidia-ml.so")


def elf(path: str) -> ELFFile:
    with open(path, "rb") as file:
        return ELFFile(io.BytesIO(file.read()))


def dynamic_symbols(path: str) -> set[str]:
    """Names that a library defines."""
    section = elf(path).get_section_by_name(".dynsym")
    assert isinstance(section, SymbolTableSection)
    return {s.name for s in section.iter_symbols() if s.name and s["st_shndx"] != "SHN_UNDEF"}


@functools.cache
def rows() -> dict[str, tuple[str, str]]:
    """Every function of the table: its class, and who says how much memory it takes."""
    text = read("native/abi/cuda.def")
    found: dict[str, tuple[str, str]] = {}
    row = r"^(ONE|TWO|ROW|PAIR)\((\w+), (\w+)([^()]*)"
    other = [("ONE", "PASS", *pair) for pair in re.findall(r"^OTHER\((\w+)([^()]*)", text, re.MULTILINE)]
    for form, kind, name, rest in (*re.findall(row, text, re.MULTILINE), *other):
        words, memory = re.findall(r"\b_\w+", rest), re.findall("[A-Z]{4,}", rest)
        name += "".join(words[:-1] if form == "PAIR" else words)
        for symbol in {name, name + {"TWO": "_v2", "PAIR": "".join(words[-1:])}.get(form, "")}:
            assert symbol not in found, symbol
            found[symbol] = kind, "".join(memory) or "NONE"
    return found


def classified() -> dict[str, str]:
    """Every function of the table, and its class."""
    return {name: kind for name, (kind, _) in rows().items()}


def test_every_entry_of_the_driver_is_classified(simdriver: str) -> None:
    driver = {
        name for name in dynamic_symbols(os.path.join(simdriver, "libcuda.so")) if name.startswith("cu")
    }
    assert len(driver) > 600
    assert driver - set(classified()) == set()


def test_the_shim_has_what_the_table_wraps_and_nothing_else(shims: str) -> None:
    wrapped = {name for name, kind in classified().items() if kind in ("ACCOUNT", "GATE", "VIEW", "HOLD")}
    assert dynamic_symbols(os.path.join(shims, "libcuda.so")) == wrapped
    nvml = dynamic_symbols(os.path.join(shims, "libnvidia-ml.so"))
    assert nvml and all(name.startswith("nvml") for name in nvml)


#: What entries that take memory are called, and others that are called so and take none of a device.
TAKES = re.compile(
    r"Alloc(?!ationProp|ationGran)|Create|Load|Import|Map(?!ped)|OpenMem|Retain|Launch|Upload|Instantiate|Prefetch"
    r"|SetLimit|RegisterBuffer|RegisterImage|HandleForAddress|MulticastBind|LibraryGet|EnumerateKernels"
    r"|KernelGetFunction|NodeSetParams|GraphAddKernel|GraphAddNode"
)
TAKES_NONE = re.compile(
    r"Event|Stream|HostAlloc|AllocHost|UserObject|Semaphore|LaunchHost|Link|Tensor|Surf|Tex|SetMapFlags|MapFlags"
    r"|GraphCreate|GraphConditional|IsLoaded|FuncLoad|LoadingMode|KernelCount|AllocNode|PoolImportFrom"
    r"|(Host|Memcpy|Memset|BatchMemOp|ChildGraph)NodeSetParams"
)


def test_what_takes_memory_is_predicted_measured_or_refused() -> None:
    """And wrapped, but for what slices have no use of."""
    for name, (kind, memory) in rows().items():
        if memory != "NONE":
            assert memory in ("PREDICTED", "MEASURED", "REFUSED", "UNCOUNTED"), name
            assert (kind == "PASS") == (memory == "UNCOUNTED"), name
        else:
            assert not TAKES.search(name) or TAKES_NONE.search(name), name


def test_variants_are_in_one_class() -> None:
    """What differs by a version or by the kind of default stream does the same to memory."""
    table = classified()
    for name, kind in table.items():
        base = re.sub(r"(_v\d+)?(_pts[zd]|_ptds)?$", "", name)
        if base in table and name != base and "PASS" in (kind, table[base]) and kind != table[base]:
            narrow = table[base] == "PASS" and re.search(r"_v\d", name)  # an address of 32 bits is never swapped
            assert {kind, table[base]} <= {"PASS", "CALL"} or (narrow and kind in ("HOLD", "ACCOUNT")), name


#: What is called so touches memory, but for first versions, with addresses of 32 bits.
TOUCHES = re.compile(r"cuMem(cpy|set)|Mem(cpy|set)Node|BatchMemOp|(Wait|Write)Value|Mem\w+BatchAsync|Decompress")


def test_what_touches_memory_waits_while_that_is_away() -> None:
    table = classified()
    for name, kind in table.items():
        if TOUCHES.search(name) and f"{name}_v2" not in table and "GetParams" not in name:
            assert kind in ("HOLD", "ACCOUNT"), name


@pytest.fixture(scope="module", params=["gcc", pytest.param("clang", marks=pytest.mark.nightly)])
def compiled(request: pytest.FixtureRequest, shims: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The shims, built by each compiler."""
    if request.param == "gcc":
        return shims
    return build(str(tmp_path_factory.mktemp("shims")), f"CC={request.param}")


@pytest.mark.parametrize("library", LIBRARIES)
def test_old_systems_can_load_it(compiled: str, library: str) -> None:
    file = elf(os.path.join(compiled, library))
    section = file.get_section_by_name(".gnu.version_r")
    assert isinstance(section, GNUVerNeedSection)
    for need, versions in section.iter_versions():
        assert need.name in ("libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"), need.name
        for version in versions:
            number = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", version.name)
            assert number and (int(number[1]), int(number[2])) <= BASELINE, version.name


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_it_is_linked_as(shims: str, library: str) -> None:
    file = elf(os.path.join(shims, library))
    dynamic = file.get_section_by_name(".dynamic")
    tags: dict[str, list[str]] = {}
    for tag in dynamic.iter_tags():
        tags.setdefault(tag.entry.d_tag, []).append(getattr(tag, tag.entry.d_tag[3:].lower(), ""))
    assert tags["DT_SONAME"] == [f"{library}.1"]
    assert f"real-{library}.1" in tags["DT_NEEDED"]
    assert tags["DT_RPATH"] == ["$ORIGIN/nvc"] and "DT_RUNPATH" not in tags
    assert not {"DT_INIT", "DT_INIT_ARRAY", "DT_FINI", "DT_FINI_ARRAY"} & set(tags)  # nothing runs by itself
    assert "DT_VERDEF" not in tags  # or programs linked in the container would depend on a version
    assert file.get_section_by_name(".text")["sh_size"] < 152 << 10


@pytest.mark.parametrize(("library", "kind"), list(zip(LIBRARIES, (1, 2))))
def test_it_says_what_it_is(shims: str, library: str, kind: int) -> None:
    file = elf(os.path.join(shims, library))
    notes = [
        note
        for section in file.iter_sections()
        if isinstance(section, NoteSection)
        for note in section.iter_notes()
    ]
    ours = [note for note in notes if note["n_name"] == "NVC"]
    assert len(ours) == 1
    assert ours[0]["n_descdata"] == bytes((VERSION, 0, 0, 0, kind, 0, 0, 0))


def test_nothing_of_threads_and_signals(shims: str) -> None:
    """No signal handler is installed, and no symbol of threads asked for: slices that swap find it by name."""
    for library in LIBRARIES:
        section = elf(os.path.join(shims, library)).get_section_by_name(".dynsym")
        asked = {s.name for s in section.iter_symbols() if s["st_shndx"] == "SHN_UNDEF"}
        assert not {
            n
            for n in asked
            if n.startswith(("pthread_", "sig", "__sig", "dl")) and n != "dl_iterate_phdr"
        }
