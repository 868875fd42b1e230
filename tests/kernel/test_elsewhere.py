"""`make test-elsewhere` and `.ci/run`: a clone in another place, by a young clock, and nothing stays of it."""

from __future__ import annotations

import glob
import os

from support import CLEAN_ENV, REPO, run

SCRIPT = f"{REPO}/tests/support/elsewhere.sh"
LOOK = "pwd; git log -1 --format=%H; git status --short; stat -c %U .; cut -d. -f1 /proc/uptime"


def test_a_clone_elsewhere_by_a_young_clock() -> None:
    said = run("bash", SCRIPT, "--busy", LOOK, "echo second", env=CLEAN_ENV).stdout.splitlines()
    head = run("git", "-C", REPO, "rev-parse", "HEAD").stdout.strip()
    place, commit, owner, uptime, closing, second, _ = said
    assert place.startswith("/srv/some place ") and place.endswith("/nvc") and not os.path.exists(place)
    assert (commit, owner, second) == (head, "root", "second")
    assert 100 <= int(uptime) < 400
    assert closing.startswith(f"== {LOOK}: passed after ")


def test_the_first_failure_ends_it_and_nothing_stays() -> None:
    before = glob.glob("/srv/some place *")
    done = run("bash", SCRIPT, "exit 7", "echo not reached", env=CLEAN_ENV, check=False)
    assert (done.returncode, done.stdout) == (7, "")
    assert glob.glob("/srv/some place *") == before
