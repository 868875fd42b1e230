"""docs/hooks.md and docs/configuration.md: every command as written."""

from __future__ import annotations

import os
import re

import pytest
from support import REPO
from support.engines import Host


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("hooks", ("unsupported capabilities found in 'compute,video,magic'", "exit status 1")),
        (
            "configuration",
            ("+timeout = 30  # seconds", "nvc.timeout = 10.0  # default", "errors: 0, warnings: 0"),
        ),
    ],
)
def test_a_page(host: Host, page: str, said: tuple[str, ...]) -> None:
    with open(os.path.join(REPO, "docs", f"{page}.md"), encoding="utf-8") as file:
        (block,) = re.findall(r"^```sh\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL)
    done = host.sh(f"({block}) 2>&1")
    for text in said:
        assert text in done.stdout
