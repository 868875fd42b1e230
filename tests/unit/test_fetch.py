"""What tests fetch: an attempt that the network failed is made again, and what cannot be fetched has a name."""

from __future__ import annotations

import os

import pytest
from support import REPO
from support import fetch as fetching
from support.fetch import ATTEMPTS, fetch

#: A client that counts its calls in a file.
CLIENT = 'echo >> "$1"; [ $(wc -l < "$1") -lt "$3" ] || exit 0; echo "$2"; exit 1'
RESET = 'Get "https://registry.example/m/@v/v1.0.0.zip": read tcp: connection reset by peer'


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "PAUSE", 0.0)


def attempt(scratch: str, said: str, succeeds: int) -> tuple[int, str]:
    """How often a client is called that says this and fails before call `succeeds`, and the error."""
    calls, error = os.path.join(scratch, "calls"), ""
    try:
        fetch("module m v1.0.0", "/bin/sh", "-c", CLIENT, "sh", calls, said, str(succeeds))
    except AssertionError as raised:
        error = str(raised)
    with open(calls, encoding="ascii") as file:
        return len(file.readlines()), error


def test_the_network_may_fail_for_a_moment(scratch: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert attempt(scratch, RESET, ATTEMPTS) == (ATTEMPTS, "")
    assert f"cannot fetch module m v1.0.0, attempt 1 of {ATTEMPTS}: {RESET}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "said, made",
    [
        (RESET, ATTEMPTS),
        ("net/http: TLS handshake timeout", ATTEMPTS),
        ("unexpected status code 503 Service Unavailable", ATTEMPTS),
        ("go: m@v1.0.0: verifying module: checksum mismatch", 1),
        ("E: Unable to locate package conmon", 1),
    ],
)
def test_what_could_not_be_fetched_has_a_name(scratch: str, said: str, made: int) -> None:
    """After the last attempt, and at once where another would fail likewise."""
    calls, error = attempt(scratch, said, ATTEMPTS + 1)
    assert calls == made and said in error
    assert error.startswith(f"cannot fetch module m v1.0.0, attempt {made} of {ATTEMPTS}: /bin/sh -c ")


@pytest.mark.parametrize("script", [".ci/run", "packaging/setup"])
def test_scripts_try_again_too(script: str) -> None:
    with open(os.path.join(REPO, script), encoding="utf-8") as text:
        runs = [line.strip() for line in text if "apt-get -" in line or "apt-get update" in line]
    assert runs and all("Acquire::Retries" in line for line in runs), runs
