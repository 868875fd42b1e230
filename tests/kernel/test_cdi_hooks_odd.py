"""Odd states, bundles and words: nvc-cdi-hook takes or refuses them with its interpreter as without, word for word.

The launcher reads all three by itself (native/launcher/cdi/words.c, bundle.c), and so does Python. Each case is
taken once by the launcher, which may hand it on, and once by Python alone.
"""

from __future__ import annotations

import json
import os
import shutil
from typing import Any

import pytest
from support import need, run
from support.nightly import few

#: For each case: exit code, message and the links in the rootfs; the launcher's, then Python's.
BOTH = """
hook=$1 rootfs=$2
mount --bind "$rootfs" "$rootfs" && cd "$3" || exit 99
for case in *; do
    for way in "" --container-spec=/dev/stdin; do
        "$hook" $way $(cat "$case/words") < "$case/state" 2> message
        echo "exit $? $(tail -n 1 message | sed 's/: [0-9]*, at most/: many, at most/')"
        find "$rootfs" -type l -printf '%P -> %l\\n' -delete
        find "$rootfs" -mindepth 1 -depth -type d -delete
        echo "--"
    done
done
"""
#: Into so many parts the cases are divided: it takes two starts for each.
PARTS = 4
LINK = "create-symlinks --link=a::/q"
WORDS = [
    "", "--quiet", "- " + LINK, "-- " + LINK, "--quiet " + LINK, LINK + " --quiet=1", LINK + " -link=b::/r",
    "create-symlinks --link", "create-symlinks --link=", "create-symlinks --link update-ldcache",
    "update-ldcache", "create-symlinks --link=a::b::/c", "create-symlinks --link=a:::/c",
    "create-symlinks --link=a::/./b/.", "create-symlinks --link=a::/u/../b//",
    "create-symlinks --link=a::" + "/d" * 2049, f"create-symlinks --link={'a' * 4095}::/c",
    f"create-symlinks --link=a::/{'c' * 300}", "create-symlinks --link=ä::/ü",
    "enable-cuda-compat --host-driver-version=.", "enable-cuda-compat --host-driver-version=1..2",
    "enable-cuda-compat --host-driver-version=", "enable-cuda-compat --host-driver-version=" + "1" * 65,
    "enable-cuda-compat --host-driver-version=5 --cuda-compat-container-root=x", "-q " * 65537 + LINK,
]  # fmt: skip
#: `B` stands for the bundle.
STATES = [
    '{"bundle":B}', '{"bundle":B} x', '{"bundle":B,}', '{"pid":-0,"bundle":B}', '{"pid":0.0,"bundle":B}',
    '{"pid":00,"bundle":B}', '{"pid":true,"bundle":B}', '{"pid":null,"bundle":B}',
    '{"pid":4194305,"bundle":B}', '{"bundle":B,"bundle":"/none"}', '{"bundle":"/none","bundle":B}',
    '{"bundle":"","bundlePath":B}', '{"b\\u0075ndle":B}', '{"bundle":B,"x":NaN}',
    '{"bundle":B,"x":"\\ud800"}', '{"bundle":B,"x":"\x01"}', '\ufeff{"bundle":B}',
    '{"bundle":B,"x":' + "[" * 63 + "]" * 63 + "}", '{"bundle":B,"x":' + "[" * 64 + "]" * 64 + "}",
    '{"bundle":B,"id":"\\u0000"}', '{"bundle":"."}', "[]", "",
]  # fmt: skip
#: What a configuration has beside what it must have; `R` stands for the rootfs.
CONFIGS = [
    '"process":{"env":["NVC_\\u0056GPU_MEMORY=?"]}', '"process":{"env":["NVC_VGPU_MEMORY\\u003d?"]}',
    '"process":{"env":["nvc_vgpu_memory=?"]}', '"process":{"env":["NVC_VGPU_MEMORY"]}',
    '"process":{"env":{}}', '"process":{"capabilities":["CAP_SYS_ADMIN"]}',
    '"process":{"capabilities":{"bounding":null}}', '"process":{},"process":null',
    '"linux":{"resources":{"devices":null}}', '"linux":[]', '"mounts":{}', '"hooks":[]',
    '"hooks":{"createContainer":[1,null,{"args":null},{"args":[]}]}',
    '"hooks":{"createContainer":[{"args":{}}]}',
    '"hooks":{"createContainer":[{"args":["slice-memory","a","--slice=?"]}]}',
    '"hooks":{"createContainer":[{"args":["slice-memory","--slice=?"]}]}', '"annotations":{"a":null}',
    '"ociVersion":1', '"root":{"path":"R/"}', '"root":{"path":"R/../rootfs"}',
    '"root":{"path":"../../rootfs"}', '"root":{"path":"R/.."}', '"root":{"path":"//"}',
    '"root":{"path":"\\u0000"}', '"root":null',
]  # fmt: skip


def cases(directory: str, rootfs: str) -> list[str]:
    """Writes one directory for each case, which is its bundle; what each is, in the order of their names."""
    made: list[str] = []

    def add(words: str = LINK, state: str = '{"bundle":B}', config: str = "") -> None:
        bundle = f"{directory}/{len(made):03}"
        os.mkdir(bundle)
        document = f'{{"ociVersion":"1.0.2","process":{{}},"root":{{"path":"R"}}{config and ","}{config}}}'
        for name, text in (
            ("words", words),
            ("state", state.replace("B", json.dumps(bundle))),
            ("config.json", document.replace("R", rootfs)),
        ):
            with open(f"{bundle}/{name}", "w", encoding="utf-8") as out:
                out.write(text)
        made.append(f"{words[:80]} {state[:80]} {config}")

    for words in WORDS:
        add(words)
    for state in STATES:
        add(state=state)
    for config in CONFIGS:
        add("slice-memory --driver-root=/ " + LINK, config=config)
    return made


@pytest.mark.parametrize("part", few(range(PARTS), PARTS))
def test_odd_input(stage: str, scratch: str, part: int) -> None:
    rootfs, directory = f"{scratch}/rootfs", f"{scratch}/cases"
    os.mkdir(rootfs)
    os.mkdir(directory)
    made = cases(directory, rootfs)
    for number in range(len(made)):
        if number % PARTS != part:
            shutil.rmtree(f"{directory}/{number:03}")
    made = made[part::PARTS]
    words: list[Any] = ["unshare", "--mount", "--propagation=private", "/bin/sh", "-c", BOTH, "sh"]
    done = run(*words, f"{stage}/bin/nvc-cdi-hook", rootfs, directory, errors="replace")
    answers = done.stdout.split("--\n")[:-1]
    assert len(answers) == 2 * len(made)
    for case, launchers, pythons in zip(made, answers[::2], answers[1::2], strict=True):
        assert launchers == pythons, case
        assert "internal error" not in pythons and "Traceback" not in pythons, case
    taken = sum(answer.startswith("exit 0") for answer in answers[::2])
    assert len(made) / 8 < taken < len(made) * 7 / 8, "most cases are refused for another reason, or none are"


TRACED = """
mount --bind "$2" "$2" && cd "$3" || exit 99
for way in "" --container-spec=/dev/stdin; do
    strace -e capset,prctl -o "rights${way%%=*}" "$1" $way create-symlinks --link=a::/q < state || exit 98
done
"""


def test_both_keep_the_same_rights(stage: str, scratch: str) -> None:
    """Of native/launcher/cdi/target.c and nvc/kernel/privileges.py: what one gives up, the other one lacks."""
    rootfs = f"{scratch}/rootfs"
    os.makedirs(f"{scratch}/cases")
    os.makedirs(f"{rootfs}/etc")
    cases(f"{scratch}/cases", rootfs)
    bundle = f"{scratch}/cases/000"
    need("strace")
    words = ["unshare", "--mount", "--propagation=private", "/bin/sh", "-c", TRACED, "sh"]
    run(*words, f"{stage}/bin/nvc-cdi-hook", rootfs, bundle)
    found = []
    for way in ("", "--container-spec"):
        path = f"{bundle}/rights{way}"
        with open(path, encoding="ascii") as lines:
            found.append([line for line in lines if line.startswith("capset(") or "PR_CAPBSET_DROP" in line])
    assert any(line.startswith("capset(") for line in found[0]) and len(found[0]) > 10
    assert found[0] == found[1]
