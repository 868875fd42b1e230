"""Compiles tracer.bpf.c for a machine and flattens it to what bpf(2) takes: no loader is needed at run time.

    build.py MACHINE OUT

$CLANG is the compiler. OUT has one line of JSON and then the instructions of all programs, one after another:

    {"license": "GPL", "maps": [{"name", "type", "key_size", "value_size", "entries", "flags"}, ...],
     "programs": [{"name", "tracepoint", "start", "size", "maps": [[instruction, index of the map], ...]}, ...]}

`start` and `size` are bytes; `maps` says which 16-byte loads get a map's descriptor. Programs are sections named
raw_tp/TRACEPOINT, maps are `struct map` of tracer.bpf.c in section maps.
"""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys

from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection

FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-target", "bpf", "-mcpu=v2")
MAP = struct.Struct("<5I")
MAP_FIELDS = ("type", "key_size", "value_size", "entries", "flags")
R_BPF_64_64 = 1
INSTRUCTION = 8
LOAD_64 = 0x18  # BPF_LD | BPF_IMM | BPF_DW


def flatten(elf: ELFFile) -> bytes:
    """The bytes of OUT. Raises ValueError for anything that bpf(2) could not take as it stands."""
    sections = list(elf.iter_sections())
    symbols = next(section for section in sections if isinstance(section, SymbolTableSection))
    indices = {section.name: index for index, section in enumerate(sections)}
    table = sections[indices["maps"]].data()
    maps: dict[str, dict[str, object]] = {}
    functions: dict[int, str] = {}
    for symbol in symbols.iter_symbols():
        if symbol["st_shndx"] == indices["maps"] and symbol.name:
            values = MAP.unpack_from(table, symbol["st_value"])
            maps[symbol.name] = {"name": symbol.name, **dict(zip(MAP_FIELDS, values))}
        elif symbol["st_info"]["type"] == "STT_FUNC":
            if symbol["st_value"]:
                raise ValueError(f"{symbol.name} is not the only function of its section")
            functions[symbol["st_shndx"]] = symbol.name
    order = sorted(maps)
    programs, code = [], b""
    for index, section in enumerate(sections):
        if not section.name.startswith("raw_tp/"):
            continue
        data = section.data()
        uses = []
        relocations = next(
            (s for s in sections if isinstance(s, RelocationSection) and s["sh_info"] == index), None
        )
        for relocation in relocations.iter_relocations() if relocations else ():
            name = symbols.get_symbol(relocation["r_info_sym"]).name
            offset = relocation["r_offset"]
            if relocation["r_info_type"] != R_BPF_64_64 or name not in maps or data[offset] != LOAD_64:
                raise ValueError(f"{section.name}: no map at byte {offset}: {name}")
            uses.append([offset // INSTRUCTION, order.index(name)])
        programs.append(
            {
                "name": functions[index],
                "tracepoint": section.name.removeprefix("raw_tp/"),
                "start": len(code),
                "size": len(data),
                "maps": uses,
            }
        )
        code += data
    license_text = sections[indices["license"]].data().rstrip(b"\0").decode("ascii")
    head = {"license": license_text, "maps": [maps[name] for name in order], "programs": programs}
    return json.dumps(head, sort_keys=True).encode("ascii") + b"\n" + code


def compiled(machine: str) -> bytes:
    """The object file for x86_64 or aarch64. Raises OSError, CalledProcessError."""
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tracer.bpf.c")
    command = [os.environ.get("CLANG", "clang"), *FLAGS, f"-DNVC_{machine.upper()}", "-c", "-o", "-", source]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def main() -> None:
    machine, out = sys.argv[1:]
    flat = flatten(ELFFile(io.BytesIO(compiled(machine))))
    with open(out, "wb") as file:
        file.write(flat)


if __name__ == "__main__":
    main()
