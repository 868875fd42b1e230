"""What the plugin remembers of the claims that it has prepared: one file for each, written whole or not at all.

    STATE/claims/<uid>.json

A file is written before anything is made for its claim, and removed after all of that is gone. So a plugin that was
killed finds at its next start whatever it may have left.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from nvc.base.files import replace_file
from nvc.kubernetes.claims.claim import Allocation, Consumer, Given
from nvc.kubernetes.errors import CheckpointError

VERSION = 1
FILE_MAX = 1 << 20
_IN_UID = frozenset("0123456789abcdefABCDEF-")
UID_MAX = 64


def is_uid(uid: str) -> bool:
    """Whether this is a UID as the API server makes them: it becomes part of file names."""
    return 0 < len(uid) <= UID_MAX and _IN_UID.issuperset(uid)


def opened(path: str) -> int:
    """A file of the state directory to lock. Raises CheckpointError."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CheckpointError.of("open lock", path, error) from None


class Checkpoint:
    """The directory of one plugin."""

    def __init__(self, state: str) -> None:
        """Raises CheckpointError where there can be none."""
        self.directory = f"{state}/claims"
        try:
            os.makedirs(self.directory, 0o700, exist_ok=True)
        except OSError as error:
            raise CheckpointError.of("make directory", self.directory, error) from None

    def uids(self) -> list[str]:
        """The UIDs of all claims that something may have been made for. Raises CheckpointError."""
        try:
            names = os.listdir(self.directory)
        except OSError as error:
            raise CheckpointError.of("list claims", self.directory, error) from None
        return sorted(name[:-5] for name in names if name.endswith(".json") and is_uid(name[:-5]))

    def read(self, uid: str) -> Allocation | None:
        """The claim as it was prepared; None: it is not. Raises CheckpointError."""
        path = self._path(uid)
        try:
            with open(path, "rb") as file:
                data = json.loads(file.read(FILE_MAX))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointError.of("read claim", path, error) from None
        except ValueError as error:
            raise CheckpointError("read claim", path, error) from None
        try:
            if data["version"] != VERSION or data["uid"] != uid:
                raise ValueError(f"version {data['version']} of claim {data['uid']}")
            # Of a newer version there may be fields that this one would drop: such a file cannot be used.
            given = tuple(Given(**{**one, "capabilities": tuple(one["capabilities"])}) for one in data["given"])
            pods = tuple(Consumer(**one) for one in data["pods"])
            return Allocation(uid, data["namespace"], data["name"], given, pods)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError("read claim", path, f"not as this version writes it: {error}") from None

    def write(self, allocation: Allocation) -> None:
        """Keep a claim. Raises CheckpointError; what was kept of it before is then as it was."""
        path = self._path(allocation.uid)
        data = {
            "version": VERSION,
            "uid": allocation.uid,
            "namespace": allocation.namespace,
            "name": allocation.name,
            "given": [dict(zip(one._fields, one)) for one in allocation.given],
            "pods": [dict(zip(one._fields, one)) for one in allocation.pods],
        }
        try:
            replace_file(path, json.dumps(data).encode(), 0o600)
        except OSError as error:
            raise CheckpointError.of("keep claim", path, error) from None

    def remove(self, uid: str) -> None:
        """Forget a claim. Raises CheckpointError."""
        try:
            os.unlink(self._path(uid))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise CheckpointError.of("forget claim", self._path(uid), error) from None

    def all(self) -> Iterator[Allocation | CheckpointError]:
        """Every claim that is kept; in place of one that cannot be read, why."""
        for uid in self.uids():
            try:
                found = self.read(uid)
            except CheckpointError as error:
                yield error
                continue
            if found is not None:
                yield found

    def _path(self, uid: str) -> str:
        assert is_uid(uid), uid
        return f"{self.directory}/{uid}.json"
