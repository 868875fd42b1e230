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
import tempfile
from typing import Any, BinaryIO

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}
MEDIA = "application/vnd.oci.image"


class Digest:
    """A file for writing that knows the SHA-256 of what was written to it."""

    def __init__(self, out: BinaryIO | gzip.GzipFile) -> None:
        self._out = out
        self._sum = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._sum.update(data)
        return self._out.write(data)

    def flush(self) -> None:
        self._out.flush()

    @property
    def name(self) -> str:
        return f"sha256:{self._sum.hexdigest()}"


def entries(root: str) -> list[str]:
    """Paths of everything below `root`, directories before what is in them."""
    found = []
    for path, names, files in os.walk(root):
        names.sort()
        links = [name for name in names if os.path.islink(os.path.join(path, name))]
        found += [os.path.relpath(os.path.join(path, name), root) for name in sorted(files + links)]
        found += [os.path.relpath(os.path.join(path, name), root) for name in names if name not in links]
    return sorted(found)


def write_layer(root: str, out: BinaryIO, when: int) -> tuple[str, str]:
    """Write the compressed layer; its digest, and that of the plain tar, which is its `diff_id`."""
    outer = Digest(out)
    with gzip.GzipFile(fileobj=outer, mode="wb", compresslevel=6, mtime=0, filename="") as packed:
        inner = Digest(packed)
        with tarfile.open(fileobj=inner, mode="w|", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
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
    return outer.name, inner.name


def config(diff_id: str, command: list[str], env: list[str], labels: dict[str, str], when: str) -> dict[str, Any]:
    given = {"Env": env, "Labels": labels, "Cmd": command}
    return {
        "created": when,
        "architecture": ARCHITECTURE[platform.machine()],
        "os": "linux",
        "config": {name: value for name, value in given.items() if value},
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        "history": [{"created": when, "created_by": "nvc"}],
    }


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def blob(document: dict[str, Any], kind: str) -> tuple[dict[str, Any], bytes]:
    data = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return {"mediaType": f"{MEDIA}.{kind}.v1+json", "digest": digest, "size": len(data)}, data


def write_archive(
    archive: str, root: str, name: str, env: list[str], command: list[str], labels: dict[str, str] | None = None
) -> None:
    """Write the image of the directory `root`, with a name such as localhost/nvc:1.0; `env` as NAME=VALUE."""
    when = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    created = datetime.datetime.fromtimestamp(when, datetime.timezone.utc)
    with tempfile.TemporaryFile(dir=os.path.dirname(os.path.abspath(archive))) as packed:
        digest, diff_id = write_layer(root, packed, when)
        size = packed.tell()
        packed.seek(0)
        stamp = created.strftime("%Y-%m-%dT%H:%M:%SZ")
        configuration, config_data = blob(config(diff_id, command, env, labels or {}, stamp), "config")
        layer = {"mediaType": f"{MEDIA}.layer.v1.tar+gzip", "digest": digest, "size": size}
        manifest, manifest_data = blob(
            {
                "schemaVersion": 2,
                "mediaType": f"{MEDIA}.manifest.v1+json",
                "config": configuration,
                "layers": [layer],
            },
            "manifest",
        )
        names = {"org.opencontainers.image.ref.name": name, "io.containerd.image.name": name}
        index = {
            "schemaVersion": 2,
            "mediaType": f"{MEDIA}.index.v1+json",
            "manifests": [{**manifest, "annotations": names}],
        }
        with tarfile.open(archive + ".new", "w", format=tarfile.PAX_FORMAT) as tar:
            add(tar, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
            add(tar, "index.json", json.dumps(index, sort_keys=True).encode())
            for descriptor, data in ((configuration, config_data), (manifest, manifest_data)):
                add(tar, "blobs/sha256/" + descriptor["digest"].removeprefix("sha256:"), data)
            info = tarfile.TarInfo("blobs/sha256/" + digest.removeprefix("sha256:"))
            info.size = size
            tar.addfile(info, packed)
    os.rename(archive + ".new", archive)
