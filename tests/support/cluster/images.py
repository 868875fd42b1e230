"""The images that tests run: busybox with nvc-spin and this machine's glibc, and `pause` for sandboxes."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile

from .. import REPO, run
from ..rootfs import make_rootfs

BUSYBOX = "localhost/busybox:1"
PAUSE = "localhost/pause:1"
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def archive(path: str, name: str, root: str, *command: str) -> str:
    """Make an OCI archive of a root directory; its path is returned."""
    code = f"import oci; oci.write_archive({path!r}, {root!r}, {name!r}, {[PATH]!r}, {list(command)!r})"
    run(sys.executable, "-c", code, cwd=os.path.join(REPO, "packaging"))
    return path


def named(path: str) -> str:
    """The name of the image in an OCI archive."""
    with tarfile.open(path) as file:
        index = file.extractfile("index.json")
        assert index is not None, path
        (one,) = json.load(index)["manifests"]
    return str(one["annotations"]["io.containerd.image.name"])


def base(directory: str) -> list[str]:
    """The archives of BUSYBOX and PAUSE, made in `directory`."""
    roots = {name: os.path.join(directory, name) for name in ("busybox", "pause")}
    make_rootfs(roots["busybox"])
    shutil.copy(os.path.join(REPO, "build/nvc-spin"), f"{roots['busybox']}/usr/bin")
    make_rootfs(roots["pause"], glibc=False)
    return [
        archive(f"{directory}/busybox.tar", BUSYBOX, roots["busybox"], "sh"),
        archive(f"{directory}/pause.tar", PAUSE, roots["pause"], "/bin/sleep", "infinity"),
    ]
