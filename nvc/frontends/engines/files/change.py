"""Changes of files, first worked out, then shown, then made: each file is replaced whole."""

from __future__ import annotations

import difflib
import json
import os
import stat
from types import ModuleType
from typing import Any

from nvc.base.errors import PermissionDenied
from nvc.base.rundir import is_ours_alone
from nvc.base.value import Value
from nvc.frontends.engines import EngineError, FileEdit
from nvc.frontends.engines.files import jsontext, place, tomltext, undo
from nvc.frontends.engines.files.tomltext import pruned

MAX_SIZE = 16 << 20  # bytes
FORMS: dict[str, ModuleType] = {"json": jsontext, "toml": tomltext}
#: The key that says how others are to be read: it goes with the last of them.
VERSION = ["version"]
_MISSING = object()


class Change(Value):
    """New contents of a file and of its records; None removes one. `path` has no links."""

    path: str
    before: bytes | None
    after: bytes | None
    backup: bytes | None = None
    record: bytes | None = None
    forget: bool = False  # both records go, and `directories` where they are empty
    directories: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read(path: str, own: bool = False) -> bytes | None:
    """The content of a file, None where there is none; with `own` only one that nobody else can change.

    Raises EngineError.
    """
    path = place.resolved(path)
    try:
        fd = place.opened(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EngineError.of("open", path, error) from None
    status = os.fstat(fd)
    problem, hint = "", ""
    if not stat.S_ISREG(status.st_mode):
        problem = "not a regular file"
    elif own and not is_ours_alone(status):
        problem = f"user {status.st_uid} or others could have written it"
        hint = "nothing was undone by it: compare it with the file beside it, then remove it"
    if problem:
        os.close(fd)
        raise EngineError("open", path, problem, hint)
    with open(fd, "rb") as file:
        data = file.read(MAX_SIZE + 1)
    if len(data) > MAX_SIZE:
        raise EngineError("read", path, f"larger than {MAX_SIZE} bytes")
    return data


def text_of(data: bytes | None, path: str) -> str:
    """The content as text, "" for a missing file. Raises EngineError."""
    try:
        return (data or b"").decode("utf-8")
    except UnicodeDecodeError as error:
        line = (data or b"")[: error.start].count(b"\n") + 1
        raise EngineError("parse", path, f"line {line}: not UTF-8") from None


def document_of(path: str, form: str) -> Any:
    """What a file says, {} where there is none. Raises EngineError."""
    return FORMS[form].load(text_of(read(path), path), path)


def value_at(document: Any, keys: tuple[str, ...], default: Any = None) -> Any:
    """The value at `keys`, or `default`."""
    for name in keys:
        if not isinstance(document, dict) or name not in document:
            return default
        document = document[name]
    return document


def configure(edit: FileEdit) -> Change:
    """The change that makes `edit`. `after` is `before` where there is nothing to do. Raises EngineError."""
    path = place.resolved(edit.path)
    before = read(path)
    record, backup = _own_records(path)
    if record is None:
        record, backup = undo.begin(path, before is not None, _missing_directories(path)), before
    elif before is None or before != record["text"].encode("utf-8"):
        record["exact"] = before == (backup if record["existed"] else None)
    text = text_of(before, path)
    if edit.content:
        if before is not None and not record["keys"] and text != edit.content:
            raise EngineError("write", path, "already exists", "remove it, or choose another directory")
        undo.remember(record, ("",), {}, edit.content, False)
        text = edit.content
    form = FORMS[edit.form]
    for key in edit.keys:
        document = form.load(text, path)
        there = value_at(document, key.path, _MISSING)
        if key.append:
            items = there if isinstance(there, list) else []
            if key.value not in items:
                undo.remember(record, key.path, document, key.value, True)
                text = form.assign(text, path, key.path, [*items, key.value])
        elif there != key.value or isinstance(there, bool) != isinstance(key.value, bool):
            undo.remember(record, key.path, document, key.value, False)
            text = form.assign(text, path, key.path, key.value)
    after = text.encode("utf-8")
    if after == (before or b""):
        return Change(path, before, before)
    record["text"] = text
    return Change(path, before, after, backup, f"{json.dumps(record, indent=1)}\n".encode())


def remove(path: str, form: str) -> Change | None:
    """The change that takes out what `configure` put in, None where it put in nothing. Raises EngineError."""
    path = place.resolved(path)
    record, backup = _records(path)
    if record is None or not undo.is_of(record, path):
        return None
    before = read(path)
    original = backup if record["existed"] else None
    lost = record["existed"] and backup is None  # somebody has removed it
    directories = tuple(reversed(record["directories"]))
    text, written, notes = text_of(before, path), str(record["text"]), []
    if before is None or not lost and (before == original or (record["exact"] and text == written)):
        after = None if before is None else original
        return Change(path, before, after, forget=True, directories=directories)
    if record["keys"] and record["keys"][0]["path"] == [""]:
        hint = "delete it yourself if you want it gone"
        raise EngineError("remove", path, "was changed since nvc wrote it", hint)
    merged = merge(written, text, text_of(original, path)) if record["exact"] and not lost else None
    if merged is not None and _is_meant(FORMS[form], merged, text, path, record["keys"]):
        text = merged  # byte for byte where others have changed nothing
    else:
        for key in reversed(record["keys"]):
            text, note = _take_back(FORMS[form], text, path, key)
            notes += [note] if note else []
    empty = not record["existed"] and FORMS[form].load(text, path) == {} and "#" not in text
    after = None if empty else text.encode("utf-8")
    return Change(path, before, after, forget=True, directories=directories, notes=tuple(notes))


def _records(path: str) -> tuple[dict[str, Any] | None, bytes | None]:
    """What was recorded of a file, and its original. Raises EngineError for what others could have planted."""
    return undo.load(read(undo.record_of(path), own=True), path), read(undo.backup_of(path), own=True)


def _own_records(path: str) -> tuple[dict[str, Any] | None, bytes | None]:
    """What was recorded of a file that is about to be changed. Raises EngineError, also for another file's."""
    record, backup = _records(path)
    if record is not None and not undo.is_of(record, path):
        cause = f"is not of {path}, but of a file of that name beside or in a directory of drop-ins"
        raise EngineError("read undo record", undo.record_of(path), cause, "choose another name for the drop-in")
    return record, backup


def _is_meant(form: ModuleType, merged: str, text: str, path: str, keys: list[dict[str, Any]]) -> bool:
    """Whether lines have been taken out of `text` so that nothing but the keys is gone."""
    try:
        found = pruned(form.load(merged, path))
    except EngineError:
        return False
    try:
        document = form.load(text, path)
    except EngineError:  # our lines stand between tables that tomlkit can read without them
        return True
    for key in reversed(keys):
        how, value, _ = _way_back(document, path, key)
        table = value_at(document, tuple(key["path"][:-1]))
        if how == "assign":
            table[key["path"][-1]] = value
        elif how == "delete":
            del table[key["path"][-1]]
    return bool(pruned(document) == found)


def _way_back(document: Any, path: str, key: dict[str, Any]) -> tuple[str, Any, str]:
    """How one key comes to be as it was before: `assign` with a value, `delete` or "", and a remark."""
    keys = tuple(key["path"])
    there = value_at(document, keys, _MISSING)
    if key["append"]:
        items = list(there) if isinstance(there, list) else []
        if key["value"] not in items:
            return "", None, ""
        items.remove(key["value"])
        return ("assign", items, "") if items or key["had"] else ("delete", None, "")
    if there is _MISSING or key["had"] and there == key["previous"]:
        return "", None, ""
    if there not in undo.values(key):
        return "", None, f"{path}: {'.'.join(keys)} was changed since nvc wrote it: left as it is"
    if key["path"] == VERSION and document.keys() - VERSION:
        return "", None, ""
    return ("assign", key["previous"], "") if key["had"] else ("delete", None, "")


def _take_back(form: ModuleType, text: str, path: str, key: dict[str, Any]) -> tuple[str, str]:
    """`text` with one key as it was before, and a remark if it no longer has the value that was set."""
    keys = tuple(key["path"])
    how, value, note = _way_back(form.load(text, path), path, key)
    if how == "assign":
        return form.assign(text, path, keys, value), ""
    if not how:
        return text, note
    text = form.delete(text, path, keys)
    for depth in range(len(keys) - 1, key["parents"], -1):
        if value_at(form.load(text, path), keys[:depth], _MISSING) == {}:
            text = form.delete(text, path, keys[:depth])
    return text, ""


def merge(base: str, one: str, other: str) -> str | None:
    """`base` with the changes that made it `one` and those that made it `other`, by lines; None where they meet."""
    lines = base.splitlines(keepends=True)
    changes = []
    for text in (one, other):
        new = text.splitlines(keepends=True)
        matcher = difflib.SequenceMatcher(None, lines, new, autojunk=False)
        changes.append([(i, j, new[k:m]) for tag, i, j, k, m in matcher.get_opcodes() if tag != "equal"])
    for start, end, _ in changes[0]:
        for first, last, _ in changes[1]:
            inside = first < start == end < last or start < first == last < end
            if inside or max(start, first) < min(end, last) or start == end == first == last:
                return None
    for start, end, new in sorted(changes[0] + changes[1], key=lambda change: change[:2], reverse=True):
        lines[start:end] = new
    return "".join(lines)


def _missing_directories(path: str) -> list[str]:
    missing: list[str] = []
    directory = os.path.dirname(path)
    while not os.path.isdir(directory):
        missing.insert(0, directory)
        directory = os.path.dirname(directory)
    return missing


def check_writable(change: Change) -> None:
    """Refuse a change that this user cannot make, before it is shown as made. Raises PermissionDenied."""
    directory = os.path.dirname(change.path)
    while not os.path.isdir(directory):
        directory = os.path.dirname(directory)
    if change.before != change.after and os.geteuid() != 0 and not os.access(directory, os.W_OK):
        raise PermissionDenied("write", change.path, "only root can")


def diff(change: Change) -> str:
    """A unified diff; "" where nothing changes."""
    if change.before == change.after:
        return ""
    old = text_of(change.before, change.path).splitlines(keepends=True)
    new = text_of(change.after, change.path).splitlines(keepends=True)
    one, other = ("/dev/null" if data is None else change.path for data in (change.before, change.after))
    lines = [
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(old, new, one, other)
    ]
    return "".join(lines)


def summary(change: Change, dry_run: bool) -> str:
    """One line that says what `make` did, or with `dry_run` would do; "" where nothing changes."""
    if change.before == change.after:
        return ""
    verbs = ("removed", "would remove") if change.after is None else ("wrote", "would write")
    return f"{verbs[dry_run]} {change.path}\n"


def make(change: Change) -> None:
    """Make a change: the records first, so that one that is cut short can be undone.

    Raises EngineError, also where the file is no more as the change found it: what others wrote would be lost.
    """
    if change.before != change.after and read(change.path) != change.before:
        hint = "it is as they left it: run the command again"
        raise EngineError("write", change.path, "somebody else has changed it meanwhile", hint)
    if change.before != change.after and change.record is not None:
        make_directory(change.path)
        _own_records(change.path)  # again: of the change before this one
        backup = undo.backup_of(change.path)
        if change.backup is not None and read(backup) != change.backup:  # one that was cut short may have left it
            _keep(backup, change.backup, change.path)
        _keep(undo.record_of(change.path), change.record, change.path)
    if change.after is None:
        _unlink(change.path)
    elif change.after != change.before:
        _write(change.path, change.after, change.path)
    if change.forget:
        _unlink(undo.record_of(change.path))  # first: without one, a backup is nobody's
        _unlink(undo.backup_of(change.path))
        for directory in change.directories:
            try:
                place.remove(directory, is_directory=True)
            except OSError:  # somebody else uses it
                break


def make_directory(path: str) -> None:
    """Make the directory of a resolved path. Raises EngineError."""
    try:
        os.close(place.directory(path, create=True))
    except OSError as error:
        raise EngineError.of("make directory", os.path.dirname(path), error) from None


def _unlink(path: str) -> None:
    try:
        place.remove(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise EngineError.of("remove", path, error) from None


def _keep(path: str, data: bytes, like: str) -> None:
    """Have a backup or a record of the file `like`: ours, whoever owns that, and as secret."""
    try:
        status = place.status_of(like)
        place.replace(path, data, 0o600 if status is None else status.st_mode & 0o755)
    except OSError as error:
        raise EngineError.of("write", path, error, f"{like} was left as it is") from None


def _write(path: str, data: bytes, like: str) -> None:
    """Replace a file at once, with the owner and mode of the file `like` where that is there, else 0644."""
    try:
        place.replace(path, data, 0o644, like)
    except OSError as error:
        raise EngineError.of("write", path, error) from None
