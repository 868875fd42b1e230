"""nvc-nri from the chart, on a cluster's real containerd: GPUs by annotations, for the namespaces that may ask."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from support import run, until
from support.cluster import Cluster, programs
from support.cluster.pods import DRIVER, WAIT, Space, pod

from nvc.frontends.nri.annotations import DOMAIN

SLICE = {f"{DOMAIN}devices": "1", f"{DOMAIN}memory": "10GiB"}
LOOK = "nvidia-smi; ls /dev | grep '^nvidia[0-9]' || true"
DRA = ("--kube-version=1.36.0", "--api-versions=resource.k8s.io/v1")


def helm(made: str, *words: str) -> str:
    (chart,) = glob.glob(os.path.join(made, "nvc-*.tgz"))
    return str(run(os.path.join(programs(), "helm"), words[0], "nvc", chart, "--namespace=nvc", *words[1:]).stdout)


def annotated(name: str, script: str = LOOK, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    document = pod(name, script)
    document["metadata"]["annotations"] = SLICE if annotations is None else annotations
    return document


@pytest.fixture
def nri(made: str, nvc: Cluster, space: Space) -> Iterator[Space]:
    """A namespace whose pods may ask, with nvc-nri on every node."""
    (chart,) = glob.glob(os.path.join(made, "nvc-*.tgz"))
    upgrade = [f"{programs()}/helm", "upgrade", "nvc", chart, "--namespace=nvc", f"--set=driverRoot={DRIVER}"]
    nvc.sh([*upgrade, f"--set=nri.enabled=true,nri.namespaces={{{space.name}}}", "--wait", WAIT])

    def registered() -> bool:
        """containerd has answered every plugin."""
        names = nvc.kubectl("-n", "nvc", "get", "pods", "-l", "app.kubernetes.io/name=nvc-nri", "-o", "name").stdout
        logs = [nvc.kubectl("-n", "nvc", "logs", name, check=False).stdout for name in names.split()]
        return len(logs) == len(nvc.state.nodes) and all("registered" in text for text in logs)

    until(registered)
    yield space
    nvc.sh([*upgrade, "--wait", WAIT])


def test_a_slice_by_annotations(nri: Space, nvc: Cluster) -> None:
    """Without a class, a claim or a resource; the GPU is the one that the annotation names."""
    printed = nri.output(annotated("slice"))
    assert "/ 10240MiB" in printed and printed.endswith("nvidia1\n")
    nodes = "ls /dev | grep ^nvidia || true"
    assert nri.output(annotated("none", nodes, {})) == ""
    other = Space(nvc, f"{nri.name}-other")
    other.open()
    try:
        other.apply(annotated("refused"))
        until(lambda: "may not ask for GPUs by annotations" in other.kubectl("get", "events"))
    finally:
        other.close()


def test_its_account_has_no_rights(nri: Space, nvc: Cluster) -> None:
    """And none of its pods has a token, or sees the node's processes and addresses."""
    account = "--as=system:serviceaccount:nvc:nvc-nri"
    for verb, kind in (("get", "pods"), ("list", "resourceslices"), ("get", "nodes"), ("create", "pods")):
        assert nvc.kubectl("auth", "can-i", verb, kind, "-A", account, check=False).stdout.strip() == "no"
    words = ("-n", "nvc", "get", "pods", "-l", "app.kubernetes.io/name=nvc-nri", "-o", "json")
    found = json.loads(nvc.kubectl(*words).stdout)["items"]
    assert len(found) == len(nvc.state.nodes)
    for each in found:
        spec = each["spec"]
        assert not spec.get("hostPID") and not spec.get("hostNetwork") and not spec.get("hostIPC")
        assert not any("projected" in volume for volume in spec["volumes"])


def test_it_is_off_by_default(made: str) -> None:
    assert "nvc-nri" not in helm(made, "template", *DRA)


def test_without_privileges(made: str) -> None:
    """No more capabilities than its unit has, which needs none to look at processes of others."""
    text = helm(made, "template", *DRA, "--set=nri.enabled=true,privileged=false")
    (part,) = [part for part in text.split("\n---\n") if "kind: DaemonSet" in part and "bin/nvc-nri" in part]
    nri = part[part.index("- name: nri\n") :]
    assert "SYS_PTRACE" not in nri and "drop:" in nri and "privileged: true" not in nri
