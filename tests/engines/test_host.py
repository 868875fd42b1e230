"""The tests' hosts: what engines are told on one is on no other."""

from __future__ import annotations

import os

import pytest
from support.engines import Host

#: Where docs/podman.md has the file of hooks.d. Podman and CRI-O read both.
HOOKS = ("/usr/share/containers/oci/hooks.d/nvc.json", "/etc/containers/oci/hooks.d/nvc.json")


@pytest.mark.parametrize("path", HOOKS)
def test_settings_of_one_host_are_on_no_other(host: Host, path: str) -> None:
    before = os.path.lexists(path)
    host.write(path, "{}")
    try:
        assert os.path.lexists(path) is before
    finally:
        host.sh(f"rm {path}")
