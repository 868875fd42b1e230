"""Makes an OCI archive of a directory: one image of one layer, the same bytes each time.

Every file belongs to root and has the time of SOURCE_DATE_EPOCH. Engines load it as `ctr images import ARCHIVE`,
`podman load -i ARCHIVE` or `docker load -i ARCHIVE`.
"""

from __future__ import annotations

import datetime
import gzip
import hashlib
import io
import json
import os
import platform
import tarfile
from typing import Any

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}
MEDIA = "application/vnd.oci.image"


def entries(root: str) -> list[str]:
    """Paths of everything below `root`, directories before what is in them."""
    found = []
    for path, names, files in os.walk(root):
        names.sort()
        links = [name for name in names if os.path.islink(os.path.join(path, name))]
        found += [os.path.relpath(os.path.join(path, name), root) for name in sorted(files + links)]
        found += [os.path.relpath(os.path.join(path, name), root) for name in names if name not in links]
    return sorted(found)


def layer(root: str, when: int) -> bytes:
    """The tar of everything below `root`."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in entries(root):
            path = os.path.join(root, name)
            info = tar.gettarinfo(path, name)
            info.uid = info.gid = 0
            info.uname = info.gname = "root"
            info.mtime = when
            if info.islnk():  # a name of a file that is here under another one: both are whole
                info.type, info.size = tarfile.REGTYPE, os.stat(path).st_size
            if info.isreg():
                with open(path, "rb") as file:
                    tar.addfile(info, file)
            else:
                tar.addfile(info)
    return out.getvalue()


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def write_archive(
    archive: str, root: str, name: str, env: list[str], command: list[str], labels: dict[str, str] | None = None
) -> None:
    """Write the image of the directory `root`, with a name such as localhost/nvc:1.0; `env` as NAME=VALUE."""
    when = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    stamp = datetime.datetime.fromtimestamp(when, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}

    def blob(data: bytes, kind: str) -> dict[str, Any]:
        files["blobs/sha256/" + digest(data).removeprefix("sha256:")] = data
        return {"mediaType": f"{MEDIA}.{kind}", "digest": digest(data), "size": len(data)}

    def document(content: dict[str, Any]) -> bytes:
        return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()

    tar = layer(root, when)
    configuration = {
        "created": stamp,
        "architecture": ARCHITECTURE[platform.machine()],
        "os": "linux",
        "config": {"Env": env, "Labels": labels or {}, "Cmd": command},
        "rootfs": {"type": "layers", "diff_ids": [digest(tar)]},
        "history": [{"created": stamp, "created_by": "nvc"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{MEDIA}.manifest.v1+json",
        "config": blob(document(configuration), "config.v1+json"),
        "layers": [blob(gzip.compress(tar, 6, mtime=0), "layer.v1.tar+gzip")],
    }
    names = {"org.opencontainers.image.ref.name": name, "io.containerd.image.name": name}
    listed = [{**blob(document(manifest), "manifest.v1+json"), "annotations": names}]
    index = {"schemaVersion": 2, "mediaType": f"{MEDIA}.index.v1+json", "manifests": listed}
    files["index.json"] = document(index)
    with tarfile.open(archive + ".new", "w", format=tarfile.PAX_FORMAT) as out:
        for path, data in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    os.rename(archive + ".new", archive)
