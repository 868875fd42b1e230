"""`nvc-runtime --version`: the low-level runtime's own text, which engines parse, then a line of nvc's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.engines import CONFIG_TOML, Host

from nvc import __version__

LINE = f"nvc: {__version__}\n"
STUB = "/run/stub/failing"


@pytest.mark.parametrize("option", ["--version", "-v", "--log /run/l --version"])
def test_it_names_both(host: Host, option: str) -> None:
    """Docker takes what stands behind `version` in any line, and the line `commit:`, for the runtime's."""
    alone = host.sh(f"runc {option}").stdout
    found = host.sh(f"nvc-runtime {option}").stdout
    assert found == alone + LINE
    assert alone.startswith("runc version ")
    assert [line for line in found.splitlines() if "version" in line] == [alone.splitlines()[0]]


@pytest.fixture
def failing(host: Host) -> Iterator[str]:
    """A low-level runtime that fails."""
    host.write(STUB, "#!/bin/sh\necho broken >&2\nexit 7\n", 0o755)
    host.write("/etc/nvc/config.toml", f'{CONFIG_TOML}\n[nvidia-container-runtime]\nruntimes = ["{STUB}"]\n')
    yield STUB
    host.write("/etc/nvc/config.toml", CONFIG_TOML)


def test_of_a_runtime_that_fails(host: Host, failing: str) -> None:
    done = host.sh("nvc-runtime --version", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "broken\n")
