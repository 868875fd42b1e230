"""What tests fetch and build from outside of the checkout: made once, kept for every checkout of this user."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Callable


def cache() -> str:
    """Where programs are kept: $NVC_TESTS_CACHE, or `nvc-tests` in the user's cache directory."""
    default = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "nvc-tests")
    return os.environ.get("NVC_TESTS_CACHE", default)


def kept(state: bytes | str, about: str, make: Callable[[str, str], None]) -> str:
    """The directory of the cache that `make(directory, path it will have)` fills; once for each `state`.

    Other processes that want the same wait meanwhile.
    """
    digest = hashlib.blake2b(state.encode() if isinstance(state, str) else state, digest_size=8)
    made = os.path.join(cache(), digest.hexdigest())
    os.makedirs(cache(), exist_ok=True)
    with open(f"{made}.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.isdir(made):
            target = made + ".new"
            shutil.rmtree(target, ignore_errors=True)
            os.makedirs(target)
            print(f"building {about}", file=sys.stderr)
            make(target, made)
            os.rename(target, made)
    return made
