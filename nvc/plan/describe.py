"""A plan as text for people and as a document for programs. Nothing here looks at the host."""

from __future__ import annotations

from nvc.base.errors import counted
from nvc.base.types import Any
from nvc.plan import ops

SCHEMA_VERSION = 1
VERBS = {
    ops.BindFile: "bind",
    ops.BindHostFile: "bind",
    ops.BindInside: "bind",
    ops.BindSocket: "socket",
    ops.BindProc: "proc",
    ops.BindDevice: "device",
    ops.BindDeviceDirectory: "devices",
}
VERB = 9  # columns of the first word of a line
WIDTH = 80  # columns; a longer path stays whole
INDENT = " " * (VERB + 2)


def describe(plan: ops.Plan) -> str:
    """One line for each operation, in the order in which they are applied; a second one names a source that
    differs from the target, or what a tmpfs or the loader cache gets. What does not fit a line goes on below it."""
    lines = [f"{'driver':<{VERB}}{plan.driver_label}  root {plan.driver_root}"]
    lines += [f"{'gpu':<{VERB}}{uuid}" for uuid in plan.devices or ("none",)]
    if plan.slice is not None:
        lines += [f"{'slice':<{VERB}}{line}" for line in plan.slice.lines()]
    rows = [_row(op) for op in plan.ops]
    width = max((len(target) for _, target, options, _ in rows if options), default=0)
    for verb, target, options, details in rows:
        padded = target.ljust(min(width, WIDTH - VERB - 2 - len(options)))
        lines.append(f"{verb:<{VERB}}{padded}  {options}" if options else f"{verb:<{VERB}}{target}")
        lines += [f"{INDENT}{detail}" for detail in details]
    lines += [f"{'warning':<{VERB}}{warning}" for warning in plan.warnings]
    return "".join(f"{part}\n" for line in lines for part in _wrapped(_printable(line)))


def document(plan: ops.Plan) -> dict[str, Any]:
    """The plan as JSON types. The keys are stable; docs/cli.md documents them."""
    return {
        "schemaVersion": SCHEMA_VERSION,
        "driver": {
            "version": plan.driver_label,
            "root": plan.driver_root,
            "systemRoot": plan.system_root,
            "deviceRoot": plan.device_root,
        },
        "devices": list(plan.devices),
        **({} if plan.slice is None else {"slice": plan.slice.document()}),
        "operations": [_operation(op) for op in plan.ops],
        "warnings": list(plan.warnings),
    }


def table(plan: ops.Plan, width: int = 0) -> str:
    """One row for each operation, in at most `width` columns; 0: any number."""
    from nvc.base.columns import fitted

    rows: list[tuple[str, ...]] = [("OPERATION", "TARGET", "OPTIONS")]
    rows += [(verb, target, options) for verb, target, options, _ in map(_row, plan.ops)]
    longest = max(len(target) for _, target, _ in rows)
    return fitted(rows, width, ("OPTIONS",), ("TARGET",), short=longest)


def _row(op: ops.Op) -> tuple[str, str, str, tuple[str, ...]]:
    """The first word, the target, its options and the lines below it."""
    if isinstance(op, ops.BINDS):
        options = ",".join(ops.options_of(op.attributes))
        if isinstance(op, ops.BindDevice):
            options = f"{f'c {op.major}:{op.minor}':<10}  {options}"
        return VERBS[type(op)], op.target, options, (f"from {op.source}",) if op.source != op.target else ()
    if isinstance(op, ops.AllowDevice):
        return "allow", f"c {op.major}:{op.minor} rw", "", ()
    if isinstance(op, ops.Tmpfs):
        held = [f"{name}/" for name in op.directories]
        held += [f"{name}  {len(content)} bytes" for name, content in op.files]
        return "tmpfs", op.target, ",".join((*ops.options_of(op.attributes), "mode=0555")), tuple(held)
    if isinstance(op, ops.Ledger):
        label = f' context="{op.label}"' if op.label else ""  # a word of its own, for narrow lines
        return "ledger", op.target, ",".join((*ops.options_of(op.attributes), f"size={op.size}")) + label, ()
    if isinstance(op, ops.Symlink):
        return "link", f"{op.target} -> {op.text}", "", ()
    if isinstance(op, ops.UpdateLoaderCache):
        held = [f"{entry.soname} ({entry.arch}) => {entry.path}" for entry in op.entries]
        return "ldcache", "/etc/ld.so.cache", counted(len(held), "entry", "entries"), tuple(held)
    return ops.assert_never(op)


def _operation(op: ops.Op) -> dict[str, Any]:
    if isinstance(op, ops.BINDS):
        return _bind(op)
    if isinstance(op, ops.AllowDevice):
        return {"operation": "allowDevice", "type": "c", **_number(op), "access": "rw"}
    if isinstance(op, ops.Tmpfs):
        return {
            "operation": "tmpfs",
            "target": op.target,
            "options": list(ops.options_of(op.attributes)),
            "mode": "0555",
            "directories": list(op.directories),
            "files": [{"name": name, **_content(content)} for name, content in op.files],
        }
    if isinstance(op, ops.Ledger):
        return {
            "operation": "ledger",
            "target": op.target,
            "options": list(ops.options_of(op.attributes)),
            "size": op.size,
            "label": op.label or None,
        }
    if isinstance(op, ops.Symlink):
        fallback = op.fallback or None
        return {"operation": "symlink", "target": op.target, "text": op.text, "fallback": fallback}
    if isinstance(op, ops.UpdateLoaderCache):
        entries = [
            {"soname": entry.soname, "path": entry.path, "architecture": entry.arch} for entry in op.entries
        ]
        return {"operation": "updateLoaderCache", "target": "/etc/ld.so.cache", "entries": entries}
    return ops.assert_never(op)


def _bind(op: ops.Bind) -> dict[str, Any]:
    found: dict[str, Any] = {"operation": f"b{type(op).__name__[1:]}", "source": op.source, "target": op.target}
    found["options"] = list(ops.options_of(op.attributes))
    if isinstance(op, ops.BindFile):
        identity = op.identity
        found["identity"] = {
            "device": identity.device, "inode": identity.inode, "size": identity.size, "mtimeNs": identity.mtime_ns
        }  # fmt: skip
    elif isinstance(op, (ops.BindHostFile, ops.BindSocket, ops.BindProc)):
        found["directory"] = op.is_directory
    elif isinstance(op, ops.BindDevice):
        found.update(_number(op))
    return found


def _number(op: ops.BindDevice | ops.AllowDevice) -> dict[str, int]:
    return {"major": op.major, "minor": op.minor}


def _content(content: bytes) -> dict[str, str]:
    """A small file: its text, or base64 where it is none."""
    try:
        return {"text": content.decode("utf-8")}
    except UnicodeDecodeError:
        import binascii

        return {"base64": binascii.b2a_base64(content, newline=False).decode("ascii")}


def _wrapped(line: str) -> list[str]:
    """The line in parts of at most WIDTH columns; words, and so paths without blanks, stay whole."""
    import textwrap

    if len(line) <= WIDTH:
        return [line]
    first, below = (line[:VERB], INDENT) if line[0] != " " else (INDENT, f"{INDENT}  ")
    return textwrap.wrap(
        line[len(first) :],
        WIDTH,
        initial_indent=first,
        subsequent_indent=below,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _printable(line: str) -> str:
    """A name from a host or an image must not move the cursor."""
    return "".join(c if c.isprintable() else "?" for c in line)
