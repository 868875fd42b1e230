"""Writes docs/errors.md, and the table of checks at the end of docs/doctor.md. Needs `make native`."""

from __future__ import annotations

import os
import sys

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, REPO)

from nvc.doctor.catalog import table  # noqa: E402
from nvc.doctor.codes import page  # noqa: E402

HEADING = "## Checks\n\n"


def main() -> None:
    """Both pages, in place."""
    with open(os.path.join(REPO, "docs/errors.md"), "w", encoding="utf-8") as out:
        out.write(page())
    path = os.path.join(REPO, "docs/doctor.md")
    with open(path, encoding="utf-8") as file:
        text = file.read().partition(HEADING)[0]
    with open(path, "w", encoding="utf-8") as out:
        out.write(text + HEADING + table())


if __name__ == "__main__":
    main()
