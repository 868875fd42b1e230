"""What TAB offers: bash's own function, called with the words that bash would make of a line."""

from __future__ import annotations

import functools
import os
import re
import shlex

from . import run

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
