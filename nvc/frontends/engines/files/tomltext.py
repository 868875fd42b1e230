"""TOML changed with its comments and order kept, by tomlkit. After each change the text is read again: it must say
what was meant, or the file is left alone."""

from __future__ import annotations

from typing import Any

from nvc.frontends.engines import EngineError


def _parse(text: str, path: str) -> Any:
    import tomlkit
    from tomlkit.exceptions import ParseError, TOMLKitError

    try:
        return tomlkit.parse(text)
    except ParseError as error:
        cause = str(error).partition(" at line")[0]
        if "'\\x00'" in cause and "\0" not in text:  # what tomlkit sees at the end
            cause = "the file ends too early"
        where = f"line {error.line} column {error.col}: {cause}"
        raise EngineError("parse", path, where) from None
    except (TOMLKitError, ValueError, RecursionError) as error:
        raise EngineError("parse", path, error) from None


def load(text: str, path: str) -> Any:
    """The document in `text`. Raises EngineError, which names line and column."""
    return _parse(text, path).unwrap()


def assign(text: str, path: str, keys: tuple[str, ...], value: Any) -> str:
    """`text` with `value` at `keys`; tables on the way are made. Raises EngineError."""
    import tomlkit

    document = _parse(text, path)
    wanted = _put(document.unwrap(), path, keys, value)
    table: Any = document
    try:
        for place, name in enumerate(keys[:-1]):
            if name not in table:
                # Only a table with keys of its own gets a heading.
                inner = isinstance(value, dict) or place < len(keys) - 2
                table[name] = tomlkit.table(is_super_table=inner)
            table = table[name]
        table[keys[-1]] = _item(value)
    except tomlkit.exceptions.TOMLKitError:
        raise _cannot_be_changed(path, keys) from None
    return _checked(tomlkit.dumps(document), path, keys, wanted)


def delete(text: str, path: str, keys: tuple[str, ...]) -> str:
    """`text` without the key."""
    import tomlkit

    document = _parse(text, path)
    wanted = document.unwrap()
    table, plain = document, wanted
    try:
        for name in keys[:-1]:
            if name not in table:
                return text
            table, plain = table[name], plain[name]
        if keys[-1] not in table:
            return text
        del table[keys[-1]]
    except tomlkit.exceptions.TOMLKitError:
        raise _cannot_be_changed(path, keys) from None
    del plain[keys[-1]]
    return _checked(tomlkit.dumps(document), path, keys, wanted)


def _put(document: Any, path: str, keys: tuple[str, ...], value: Any) -> Any:
    table = document
    for place, name in enumerate(keys[:-1]):
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise EngineError("set key", path, f"{'.'.join(keys[: place + 1])} is not a table")
    table[keys[-1]] = value
    return document


def _item(value: Any) -> Any:
    import tomlkit

    if not isinstance(value, dict):
        return tomlkit.item(value)
    table = tomlkit.table()
    for name, inner in value.items():
        table[name] = _item(inner)
    return table


def _checked(text: str, path: str, keys: tuple[str, ...], wanted: Any) -> str:
    if pruned(load(text, path)) != pruned(wanted):
        raise _cannot_be_changed(path, keys)
    return text


def _cannot_be_changed(path: str, keys: tuple[str, ...]) -> EngineError:
    """For tables that tomlkit does not find again, as those that stand in several places."""
    return EngineError(
        "set key", path, f"{'.'.join(keys)} cannot be changed where it stands",
        "write its tables under headings of their own, or use another file with --config",
    )  # fmt: skip


def pruned(document: Any) -> Any:
    """A document without empty tables, which TOML does not always show."""
    if not isinstance(document, dict):
        return document
    kept = {name: pruned(value) for name, value in document.items()}
    return {name: value for name, value in kept.items() if value != {}}


def value_text(value: Any) -> str:
    """A value as TOML has it, on one line."""
    import tomlkit

    return str(tomlkit.item(value).as_string())


def readings(text: str) -> list[Any]:
    """What `text` is as a TOML value; [] where it is none."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        return [tomlkit.value(text).unwrap()]
    except (TOMLKitError, ValueError, RecursionError, AttributeError):
        return []
