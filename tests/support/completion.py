"""What TAB offers: bash's own function, called with the words that bash would make of a line; and fish, and zsh."""

from __future__ import annotations

import functools
import os
import re
import shlex
import tempfile

from . import need, run

#: bash begins a new word at each of these (COMP_WORDBREAKS).
BREAKS = re.compile(r"([=:])")


@functools.cache
def _script(launcher: str) -> str:
    return run(launcher, "completion", "bash").stdout


def offers(launcher: str, line: str) -> list[str]:
    """What nvc-cli offers at the end of `line`, without what bash keeps of the word: all up to its last colon."""
    words = [part for word in line.split(" ") for part in (BREAKS.split(word) if word else [""])]
    words = [word for place, word in enumerate(words) if word or place == len(words) - 1]
    if words[-1] == "" and len(words) > 1 and words[-2] in "=:" and not line.endswith(" "):
        words.pop()
    ask = f"""
        PATH={shlex.quote(os.path.dirname(launcher))}:$PATH
        {_script(launcher)}
        COMP_WORDS=("$@") COMP_CWORD={len(words) - 1}
        _nvc_cli_completion nvc-cli
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    return run("bash", "--norc", "-c", ask, "bash", *words).stdout.split()


def offers_in_fish(launcher: str, line: str) -> list[str]:
    """What fish offers at the end of `line`."""
    ask = f"""
        set -gx PATH {shlex.quote(os.path.dirname(launcher))} $PATH
        nvc-cli completion fish | source
        complete -C {shlex.quote(line)}
    """
    return [one.partition("\t")[0] for one in run(need("fish"), "--no-config", "-c", ask).stdout.splitlines()]


def screen_of_zsh(launcher: str, line: str, last: str) -> str:
    """What an interactive zsh shows after TAB at the end of `line`, up to the word `last`."""
    ask = f"""
        zmodload zsh/zpty
        zpty shell zsh -f -i
        zpty -w shell 'autoload -Uz compinit; compinit -u -D
            nvc-cli completion zsh > $TMPDIR/_nvc-cli; source $TMPDIR/_nvc-cli; print rea\\dy'
        zpty -r shell shown '*ready*'
        zpty -w -n shell {shlex.quote(line)}$'\\t\\t'
        zpty -r shell shown '*{last}*'
        print -r -- "$shown"
    """
    with tempfile.TemporaryDirectory() as directory:
        path = f"{os.path.dirname(launcher)}:{os.environ['PATH']}"
        return run(need("zsh"), "-f", "-c", ask, env={**os.environ, "PATH": path, "TMPDIR": directory}).stdout
