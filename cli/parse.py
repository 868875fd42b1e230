"""The parser of the hot path. It accepts what GNU argp accepts: bundled short flags, attached values,
unambiguous beginnings of long names, `--`; the global options end at the command word."""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.base.value import Value
from nvc_cli.options import FLAG, GLOBAL, HOT, OMITTED, OPTIONAL, REPEATED, SHOW, Option, dest

#: True, a text, or the texts of a repeated option, by `dest`. What was not given is absent.
Values = dict[str, bool | str | list[str]]


class Words(Value):
    """The outcome of one level: option values and what is not an option."""

    values: Values
    rest: tuple[str, ...]
    given: tuple[tuple[str, int], ...]  # each option given, and of how many words it was made
    show: str = ""  # help, usage or version: parsing stopped there


class CommandLine(Value):
    """A whole command line. `words` is empty for a command that is not hot, or where `show` is set."""

    globals: Words
    command: str = ""
    words: Words = Words({}, (), ())

    @property
    def show(self) -> str:
        return self.globals.show or self.words.show


def parse_line(argv: list[str]) -> CommandLine:
    """Parse the global options, then those of a hot command. Raises InputError."""
    outer = parse_words(GLOBAL, argv, in_order=True)
    if outer.show or not outer.rest:
        return CommandLine(outer)
    command, rest = outer.rest[0], list(outer.rest[1:])
    if command not in HOT:
        return CommandLine(outer, command)
    return CommandLine(outer, command, parse_words(HOT[command][0], rest, command=command))


def parse_words(
    options: tuple[Option, ...], argv: list[str], in_order: bool = False, command: str = ""
) -> Words:
    """Parse one level. With `in_order` the first word that is no option ends it, else options may follow."""
    values: Values = {}
    given: list[tuple[str, int]] = []
    rest: list[str] = []
    at = 0
    while at < len(argv):
        word = argv[at]
        at += 1
        if word == "--":
            rest += argv[at:]
            break
        if word[:1] != "-" or word == "-":
            if in_order:
                rest += argv[at - 1 :]
                break
            rest.append(word)
            continue
        pairs, wants = (_long if word[1] == "-" else _short)(options, word, command)
        if wants:  # the last option of the word has its value in the next one
            if at == len(argv):
                raise InputError(wants)
            pairs[-1] = (pairs[-1][0], argv[at])
            at += 1
        for option, value in pairs:
            if option[2] == SHOW:
                return Words(values, (), tuple(given), option[0])
            name = dest(option)
            given.append((name, 2 if wants else 1))
            if option[2] == REPEATED:
                values.setdefault(name, []).append(value)  # type: ignore[union-attr, arg-type]
            else:
                values[name] = value
    return Words(values, tuple(rest), tuple(given))


def _long(
    options: tuple[Option, ...], word: str, command: str
) -> tuple[list[tuple[Option, bool | str]], str]:
    """The option of `--name` or `--name=value`, and the complaint if a value is wanted and absent."""
    name, equals, value = word[2:].partition("=")
    found = [option for option in options if option[0] == name]
    if not found:
        found = [option for option in options if option[0].startswith(name)]
    if not found:
        hint = _hint(options, f"--{name}", command)
        raise InputError(f"unrecognized option '--{name}'", hint=hint)
    if len(found) > 1:
        names = " ".join(f"'--{option[0]}'" for option in found)
        raise InputError(f"option '--{name}' is ambiguous; possibilities: {names}", hint="write one in full")
    option = found[0]
    if option[2] in (FLAG, SHOW):
        if equals:
            raise InputError(f"option '--{option[0]}' doesn't allow an argument", hint="write it without")
        return [(option, True)], ""
    if equals:
        return [(option, value)], ""
    if option[2] == OPTIONAL:
        return [(option, OMITTED)], ""
    return [(option, "")], f"option '--{option[0]}' requires an argument"


def _short(
    options: tuple[Option, ...], word: str, command: str
) -> tuple[list[tuple[Option, bool | str]], str]:
    """The options of `-abc` or `-avalue`, and the complaint if the last one wants a value and has none."""
    pairs: list[tuple[Option, bool | str]] = []
    for at, letter in enumerate(word[1:], 2):
        option = next((option for option in options if letter in option[1]), None)
        if option is None:
            raise InputError(f"invalid option -- '{letter}'", hint=_hint(options, f"-{letter}", command))
        if option[2] in (FLAG, SHOW):
            pairs.append((option, True))
            if option[2] == SHOW:
                return pairs, ""
            continue
        value = word[at:]
        if value or option[2] == OPTIONAL:
            return [*pairs, (option, value or OMITTED)], ""
        return [*pairs, (option, "")], f"option requires an argument -- '{letter}'"
    return pairs, ""


def _hint(options: tuple[Option, ...], word: str, command: str) -> str:
    """What may have been meant by an option that is not known."""
    from nvc_cli.suggest import option_hint

    return option_hint(command, word, [f"--{option[0]}" for option in options])
