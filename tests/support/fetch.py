"""Package clients that tests run to fetch what they need. The network may fail for a moment: they try again."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
from collections.abc import Mapping

ATTEMPTS = 3
#: Seconds before the second attempt; twice that before the third.
PAUSE = 5.0
SECONDS = 900
#: What clients say when a later attempt may succeed. Whatever else they say is final, such as "404 Not Found".
TRANSIENT = re.compile(
    r"time(d )?-?out|connection (was )?(reset|refused|closed|aborted|failed)|unexpected EOF|: EOF\b|broken pipe"
    r"|temporary failure|could ?n[o']t? (resolve|connect)|no such host|name resolution|network is unreachable"
    r"|stream error|http2: |\b(429|50[0234]) |hash sum mismatch|file has unexpected size",
    re.IGNORECASE,
)


def fetch(
    what: str, *argv: str, variables: Mapping[str, str] | None = None, cwd: str | None = None
) -> None:
    """Run a package client with `variables` in the caller's environment, which says where packages come from.

    Raises AssertionError that begins with `what`, the name of what could not be fetched, when the client fails for
    good or ATTEMPTS times.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            done = subprocess.run(
                argv, cwd=cwd, env={**os.environ, **(variables or {})}, timeout=SECONDS, text=True, check=False,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"cannot fetch {what} in {SECONDS} s: {' '.join(argv)}") from error
        if done.returncode == 0:
            return
        said = done.stdout[-4000:]
        if attempt == ATTEMPTS or not TRANSIENT.search(said):
            break
        print(f"cannot fetch {what}, attempt {attempt} of {ATTEMPTS}: {said.strip()}", file=sys.stderr)
        select.select([], [], [], PAUSE * attempt)
    raise AssertionError(
        f"cannot fetch {what}, attempt {attempt} of {ATTEMPTS}: {' '.join(argv)}: exit {done.returncode}\n{said}"
    )
